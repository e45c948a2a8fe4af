"""Real runs of other people's loops on two ranks; the record against a stopwatch that knows nothing of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from pretune.datasets import Status, TrialStore

pytestmark = pytest.mark.slow
PROGRAMS = Path(__file__).parent / "programs"


def run(tmp_path, program, *arguments):
    (trial,), said, answer = train(tmp_path, program, *arguments)
    return trial, said, answer


def train(tmp_path, program, *arguments, ranks=2):
    store = tmp_path / "trials"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    answer = subprocess.run(
        [*command, str(PROGRAMS / f"{program}.py"), str(store), str(tmp_path / "out"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith('{"ends"')]
    return list(TrialStore(store).trials()), said, answer


def stopped(trial, ends):
    """Seconds of the measured windows by the stopwatch, but for the last, which ends with the writing."""
    first = trial.warmup_windows - 1
    times = [b - a for a, b in zip(ends[first:], ends[first + 1 :], strict=False)]
    return times[: len(trial.window_times_s) - 1]


def test_a_trainer_is_recorded_without_its_evaluations(tmp_path):
    trial, (said,), _ = run(tmp_path, "huggingface")
    assert trial.status is Status.OK
    assert (trial.knobs.micro_batch, trial.knobs.accumulation, trial.knobs.dp) == (4, 2, 2)
    assert (trial.workload.sequence_length, trial.workload.global_batch_sequences) == (32, 16)
    assert (trial.workload.model.layers, trial.workload.model.gated_mlp) == (2, True)
    assert trial.peak_memory_device_bytes is None  # the model was there before
    pairs = list(zip(trial.window_times_s, stopped(trial, said["ends"]), strict=False))
    evaluated = [own for own, whole in pairs if whole - own > 0.4]  # an evaluation takes half a second
    steps = [(own, whole) for own, whole in pairs if whole - own <= 0.4]
    assert evaluated
    assert median(own / whole for own, whole in steps) == pytest.approx(1.0, rel=0.05)


@pytest.mark.long
def test_what_is_no_knob_is_one_warning_and_the_trainer_trains_on(tmp_path):
    trials, (said,), answer = train(tmp_path, "huggingface", "no-knob", ranks=1)
    assert (trials, len(said["ends"]), answer.returncode) == ([], 24, 0)
    (warned,) = [line for line in answer.stderr.splitlines() if "no trial is recorded" in line]
    assert "recorder: knobs: zero_stage" in warned


def test_an_engine_is_recorded_at_the_ends_of_whole_windows(tmp_path):
    trial, (said,), _ = run(tmp_path, "engine", "steady")
    assert trial.status is Status.OK
    assert (trial.framework, trial.knobs.zero_stage) == ("deepspeed", 1)
    assert trial.knobs.reduce_bucket_size == 1_000_000
    assert trial.workload.global_batch_tokens == 2 * 2 * 2 * 16
    assert min(trial.window_times_s) > 0.02
    assert trial.loss_first is not None
    times = stopped(trial, said["ends"])
    assert sum(trial.window_times_s[:-1]) == pytest.approx(sum(times), rel=0.02)


@pytest.mark.long
def test_the_rank_that_ran_out_of_memory_says_so_not_the_one_that_lost_it(tmp_path):
    trial, _, answer = run(tmp_path, "engine", "oom")
    assert answer.returncode != 0
    assert (trial.status, trial.cause) == (Status.OOM, "MemoryError: no room")


def test_a_rank_that_is_killed_is_recorded_by_what_stands_beside_it(tmp_path):
    trial, _, answer = run(tmp_path, "engine", "vanish")
    assert answer.returncode != 0
    assert trial.status is Status.CRASH
    assert "killed" in trial.cause


@pytest.mark.long
def test_a_fit_is_recorded_without_its_validation(tmp_path):
    trial, (said,), _ = run(tmp_path, "lit")
    assert (trial.status, trial.framework) == (Status.OK, "lightning")
    assert (trial.knobs.micro_batch, trial.knobs.accumulation) == (4, 2)
    times = stopped(trial, said["ends"])
    assert max(trial.window_times_s) < 0.25 < max(times)
    assert median(trial.window_times_s) == pytest.approx(median(times), rel=0.05)
