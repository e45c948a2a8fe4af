from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.datasets import Accelerator, Platform, Status, TrialStore
from pretune.datasets.importers.account import import_files
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.megatron import MegatronLog

GOLDEN = Path(__file__).parent / "golden" / "megatron"
FILES = sorted(GOLDEN.iterdir())
PLATFORM = Platform(name="pod", accelerator=Accelerator(name="a100"), devices_per_node=4, nodes=2)


def trials(path):
    found = [complete(run, path, "megatron", Given(PLATFORM)) for run in MegatronLog().read(path)]
    assert not [each for each in found if isinstance(each, SetAside)]
    return found


def test_a_log_of_megatron_core_becomes_a_trial():
    (trial,) = trials(GOLDEN / "core-0.12.log")
    assert (trial.status, trial.framework, trial.purpose) == (Status.OK, "megatron", "imported")
    model = trial.workload.model
    assert (model.layers, model.hidden_size, model.heads, model.kv_heads) == (24, 1024, 16, 4)
    assert (model.ffn_size, model.vocabulary, model.gated_mlp, model.tied_embeddings) == (
        2816,
        32000,
        True,
        False,
    )
    assert (model.positions, model.norm, model.experts) == ("rotary", "rmsnorm", 0)
    assert (trial.workload.sequence_length, trial.workload.global_batch_sequences) == (2048, 32)
    knobs = trial.knobs
    assert (knobs.tp, knobs.pp, knobs.dp, knobs.micro_batch, knobs.accumulation) == (2, 1, 4, 2, 4)
    assert (knobs.zero_stage, knobs.activation_checkpointing, knobs.vp) == (1, "selective", None)
    assert trial.step_time_s == pytest.approx(0.4)  # without the first entry, in which it warmed up
    assert trial.tokens_per_s == pytest.approx(32 * 2048 / 0.4)
    assert trial.window_times_s == pytest.approx([0.41, 0.4, 0.39, 0.4])
    assert (trial.loss_first, trial.loss_last) == (10.5, 7.1)
    assert trial.platform == PLATFORM


def test_seconds_are_seconds_and_a_ramped_batch_is_a_run_of_each_size():
    small, large = trials(GOLDEN / "deepspeed-ramped.out")
    assert small.step_time_s == pytest.approx(1.0, rel=1e-3)
    assert large.step_time_s == pytest.approx(2.0, rel=1e-3)
    assert [t.workload.global_batch_sequences for t in (small, large)] == [16, 32]
    assert small.knobs.zero_stage == 1
    assert small.trial_id != large.trial_id


def test_a_run_that_measured_nothing_failed_and_says_of_what():
    oom, crash = trials(GOLDEN / "failed.log")
    assert oom.status is Status.OOM
    assert "CUDA out of memory" in oom.cause
    assert (crash.status, crash.cause) == (Status.CRASH, "ValueError: something that is wrong")
    assert oom.tokens_per_s is crash.tokens_per_s is None


@pytest.mark.parametrize(
    ("theirs", "prefix", "time"),
    [
        ("global batch size", "", "500.0"),
        ("gloabl batch size", "[default0]: [2025-05-27 15:23:07]", "500.0"),
        ("global batch size", "\x1b[32m7:\x1b[0m [2026-01-02 03:04:05]", "500.0/512.3"),
    ],
)
def test_labels_of_all_years_are_read(tmp_path, theirs, prefix, time):
    line = f"{prefix} iteration  {{}}/  50 | elapsed time per iteration (ms): {time} | {theirs}:  64 |"
    (tmp_path / "x.log").write_text("\n".join(line.format(i) for i in range(1, 5)))
    (run,) = MegatronLog().read(tmp_path / "x.log")
    assert run.values["step_time_s"] == pytest.approx(0.5)
    assert run.values["workload.global_batch_sequences"] == 64


@pytest.mark.parametrize("golden", FILES, ids=lambda path: path.name)
def test_cut_at_every_line_it_yields_the_same_runs_with_fewer_windows(golden, tmp_path):
    whole = {run.key: run.values for run in MegatronLog().read(golden)}
    lines, path = golden.read_text().splitlines(keepends=True), tmp_path / golden.name
    for end in range(len(lines) + 1):
        path.write_text("".join(lines[:end]))
        for run in MegatronLog().read(path):
            assert isinstance(run, Run)
            if "step_time_s" not in run.values:
                continue
            assert run.key in whole  # the same run, whatever is still to come
            times = run.values["window_times_s"]
            assert times == whole[run.key]["window_times_s"][: len(times)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_bytes_make_it_crash(tmp_path_factory, data):
    text = data.draw(st.sampled_from(FILES)).read_bytes()
    cut = data.draw(st.integers(0, len(text)))
    noise = data.draw(st.binary(max_size=40))
    path = tmp_path_factory.mktemp("noise") / "x.log"
    path.write_bytes(text[:cut] + noise + text[cut:])
    for found in MegatronLog().read(path):
        if isinstance(found, Run):
            complete(found, path, "megatron", Given(PLATFORM))


def test_the_same_file_twice_adds_nothing_and_a_grown_one_is_the_same_run(tmp_path):
    log, store = tmp_path / "run.log", TrialStore(tmp_path / "trials")
    lines = (GOLDEN / "core-0.12.log").read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-2]))
    first = import_files(MegatronLog(), [tmp_path], Given(PLATFORM), store)
    log.write_text("".join(lines))
    second = import_files(MegatronLog(), [log], Given(PLATFORM), store)
    assert (first.taken, first.already_there) == (1, 0)
    assert (second.taken, second.already_there) == (0, 1)
    assert len(store) == 1


def test_the_log_says_how_many_nodes_there_were():
    bigger = Platform(name="pod", accelerator=Accelerator(name="a100"), devices_per_node=8, nodes=4)
    path = GOLDEN / "core-0.12.log"
    (run,) = MegatronLog().read(path)
    trial = complete(run, path, "megatron", Given(bigger))
    assert (trial.platform.nodes, trial.platform.devices_per_node) == (1, 8)
    assert trial.platform.name == "pod-1x8"
    assert isinstance(complete(run, path, "megatron", Given()), SetAside)
