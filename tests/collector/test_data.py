import numpy as np
import pytest

from pretune.collector.data import Layout, SyntheticTokens, TokenFile, micro_batches
from pretune.errors import InputError


def first_window(source, micro_batch, accumulation, dp):
    """All sequences of two windows, from all ranks."""
    windows = []
    for rank in range(dp):
        stream = micro_batches(source, Layout(micro_batch, accumulation, dp, rank))
        windows.append([[next(stream) for _ in range(accumulation)] for _ in range(2)])
    return [{row.tobytes() for rank in windows for part in rank[step] for row in part} for step in range(2)]


def test_every_layout_trains_on_the_same_sequences_in_the_same_step():
    source = SyntheticTokens(100, 16, seed=3)
    expected = first_window(source, 8, 1, 1)
    assert len(expected[0]) == 8
    assert expected[0].isdisjoint(expected[1])
    for layout in ((4, 1, 2), (2, 2, 2), (1, 4, 2), (1, 2, 4)):
        assert first_window(source, *layout) == expected


def test_synthetic_tokens_repeat_with_the_seed_and_follow_zipf():
    source = SyntheticTokens(50, 400, seed=0)
    rows = source.sequences(0, 50)
    assert rows.shape == (50, 401)
    assert np.array_equal(rows, SyntheticTokens(50, 400, seed=0).sequences(0, 50))
    assert not np.array_equal(rows, SyntheticTokens(50, 400, seed=1).sequences(0, 50))
    counts = np.bincount(rows.ravel(), minlength=50)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.15)


@pytest.mark.parametrize("name", ["ids.npy", "ids.bin"])
def test_a_token_file_is_read_in_order_and_again_from_its_start(tmp_path, name):
    ids = np.arange(101, dtype=np.uint16)
    if name.endswith("npy"):
        np.save(tmp_path / name, ids)
    else:
        ids.tofile(tmp_path / name)
    source = TokenFile(tmp_path / name, vocabulary=200, length=10)
    assert source.sequences(0, 2).tolist() == [list(range(11)), list(range(10, 21))]
    assert source.sequences(10, 1).tolist() == source.sequences(0, 1).tolist()


def test_a_token_file_that_cannot_be_used_is_refused_by_name(tmp_path):
    path = tmp_path / "ids.npy"
    with pytest.raises(InputError, match=r"ids\.npy: cannot be read"):
        TokenFile(path, 100, 10)
    np.save(path, np.arange(5, dtype=np.uint16))
    with pytest.raises(InputError, match="flat array of over 10"):
        TokenFile(path, 100, 10)
    np.save(path, np.arange(50, dtype=np.uint16))
    with pytest.raises(InputError, match="outside the vocabulary of 20"):
        TokenFile(path, 20, 10).sequences(0, 4)
