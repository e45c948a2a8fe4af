from pathlib import Path

import pytest

from pretune.datasets import Accelerator, Platform, Status
from pretune.datasets.importers.base import SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.nanotron import Nanotron
from pretune.errors import InputError

GOLDEN = Path(__file__).parent / "golden" / "nanotron" / "2025_benchmark.csv"
POD = Platform(name="pod", accelerator=Accelerator(name="h100-sxm-80gb"), devices_per_node=8)


def trials(path):
    return [complete(run, path, "nanotron", Given(POD)) for run in Nanotron().read(path)]


def test_a_line_is_a_trial_on_as_many_devices_as_its_degrees_make():
    small, wide, deep, empty = trials(GOLDEN)
    assert [trial.platform.devices for trial in (small, wide, deep, empty)] == [8, 16, 32, 64]
    assert deep.tokens_per_s == pytest.approx(3100.75 * 32)
    assert (deep.knobs.dp, deep.knobs.tp, deep.knobs.pp, deep.knobs.accumulation) == (4, 2, 4, 32)
    assert (small.knobs.activation_checkpointing, wide.knobs.activation_checkpointing) == ("none", "full")
    assert (small.knobs.sequence_parallel, wide.knobs.sequence_parallel) == (False, True)
    assert (small.workload.precision, small.knobs.zero_stage) == ("bf16", 1)
    assert small.peak_memory_allocated_bytes == pytest.approx(40.25 * 2**30)
    assert small.step_time_s == pytest.approx(8 * 4 * 8 * 4096 / (8 * 21000.5))


def test_the_feed_forward_size_is_the_one_that_gives_the_parameters():
    assert [trial.workload.model.ffn_size for trial in trials(GOLDEN)] == [8192, 8192, 14336, 28672]


def test_a_total_that_no_size_gives_leaves_it_open(tmp_path):
    path = tmp_path / "bench.csv"
    path.write_bytes(GOLDEN.read_bytes().replace(b"8.03B", b"2.03B"))
    run = list(Nanotron().read(path))[2]
    assert "model.ffn_size" not in run.values
    assert any("model.ffn_size is not stated" in note for note in run.notes)


def test_a_total_beyond_all_numbers_leaves_it_open(tmp_path):
    path = tmp_path / "bench.csv"
    path.write_bytes(GOLDEN.read_bytes().replace(b"8.03B", b"9" * 400 + b"B"))
    assert "model.ffn_size" not in list(Nanotron().read(path))[2].values


def test_a_global_batch_in_tokens_is_found_out():
    runs = list(Nanotron().read(GOLDEN))
    assert runs[2].values["workload.global_batch_sequences"] == 1 * 32 * 4
    assert [bool(run.notes) for run in runs] == [False, False, True, False]


def test_a_run_that_measured_nothing_failed():
    last = trials(GOLDEN)[-1]
    assert (last.status, last.cause, last.tokens_per_s) == (Status.CRASH, "no step was measured", None)


def test_an_older_file_without_the_shape_says_what_to_state():
    path = GOLDEN.with_name("2023_no_shape.csv")
    (run,) = Nanotron().read(path)
    assert run.values["platform.devices"] == 16
    aside = complete(run, path, "nanotron", Given(POD))
    assert isinstance(aside, SetAside)
    assert "--map" in aside.reason
    told = dict.fromkeys(("model.layers", "model.heads"), 16) | {"model.name": "a", "model.hidden_size": 2048}
    told |= {"model.vocabulary": 131072}
    assert complete(run, path, "nanotron", Given(POD, told)).tokens_per_s == 10500 * 16


@pytest.mark.parametrize("name", ["2025_benchmark.csv", "2023_no_shape.csv"])
def test_a_file_cut_anywhere_gives_no_run_that_the_whole_one_has_not(name, tmp_path):
    path = GOLDEN.with_name(name)
    whole = {run.key: run.values for run in Nanotron().read(path)}
    data, cut = path.read_bytes(), tmp_path / name
    for end in range(data.index(b"\n") + 1, len(data), 3):
        cut.write_bytes(data[:end])
        for run in Nanotron().read(cut):
            assert isinstance(run, SetAside) or whole[run.key] == run.values


@pytest.mark.parametrize(
    ("was", "put", "column"),
    [(b",8,1,1,1,1,All", b",0,1,1,1,1,All", "dp"), (b",1,25,True", b",1,x,True", "ddp_bucket_cap_mb")],
)
def test_a_figure_that_none_can_be_costs_its_line(was, put, column, tmp_path):
    path = tmp_path / "bench.csv"
    path.write_bytes(GOLDEN.read_bytes().replace(was, put, 1))
    first, *rest = Nanotron().read(path)
    assert isinstance(first, SetAside)
    assert (first.line, first.reason.split(":")[0], len(rest)) == (2, column, 3)


def test_another_csv_is_refused(written):
    with pytest.raises(InputError, match="has no column 'tok/s/gpu'"):
        written(Nanotron(), "job_id,name\n1,a\n")
