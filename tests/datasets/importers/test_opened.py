"""Compressed logs are read as what is inside them."""

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from pretune.datasets.importers import importer
from pretune.datasets.importers.lines import numbered
from pretune.datasets.importers.opened import telling
from pretune.errors import InputError

LINES = [f"iteration {i}: the loss is {i * i}" for i in range(40_000)]
TEXT = ("\n".join(LINES) + "\n").encode()
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_log_has_the_lines_that_are_inside(tmp_path, suffix):
    path = tmp_path / f"run.log{suffix}"
    path.write_bytes(PACKED[suffix](TEXT))
    counted = []
    with telling(counted.append):
        assert [line for _, line in numbered(path)] == LINES
    assert sum(counted) == path.stat().st_size  # what a progress bar counts


@pytest.mark.parametrize("suffix", PACKED)
def test_one_that_is_cut_off_has_those_before(tmp_path, suffix):
    path = tmp_path / f"run.log{suffix}"
    whole = PACKED[suffix](TEXT)
    path.write_bytes(whole[: int(len(whole) * 0.9)])
    found = [line for _, line in numbered(path)]
    assert len(found) < len(LINES)
    assert found == LINES[: len(found)]
    assert found


def test_one_that_is_damaged_or_none_is_one_line_of_error(tmp_path):
    path = tmp_path / "run.log.gz"
    path.write_bytes(TEXT)
    with pytest.raises(InputError, match=r"run\.log\.gz: cannot be read \(damaged \.gz"):
        list(numbered(path))


def test_the_same_log_compressed_is_the_same_run(tmp_path):
    plain = Path(__file__).parent / "golden" / "megatron" / "core_0.12.log"
    packed = tmp_path / f"{plain.name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    read = importer("megatron")()
    assert [run.key for run in read.read(packed)] == [run.key for run in read.read(plain)]
