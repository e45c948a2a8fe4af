import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
import torch

from pretune.collector import TrialRecorder
from pretune.collector.outcome import Diverged
from pretune.datasets import Accelerator, Knobs, Measure, ModelSpec, Platform, Status, TrialStore, Workload

MODEL = ModelSpec(name="tiny", layers=1, hidden_size=16, heads=2, vocabulary=32, max_positions=8)
WORKLOAD = Workload(model=MODEL, sequence_length=8, global_batch_tokens=64, precision="fp32")
PLATFORM = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=1, backend="gloo")
MEASURE = Measure(min_warmup_windows=2, max_warmup_windows=4, min_windows=5, max_windows=12, max_seconds=0.1)


def recorder(store, **more):
    given = {"workload": WORKLOAD, "platform": PLATFORM, "knobs": Knobs(micro_batch=8), "measure": MEASURE}
    return TrialRecorder(store=store, **given | more)


def stored(folder):
    return list(TrialStore(folder).trials())


def test_a_plain_loop_becomes_one_trial_in_the_store(tmp_path):
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with recorder(tmp_path, trial_id="mine") as r:
        for _ in range(1000):
            loss = (weight**2).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
            if not r.step(loss=loss):
                break
    (trial,) = stored(tmp_path)
    assert trial == r.trial
    assert (trial.trial_id, trial.status, trial.cause) == ("mine", Status.OK, None)
    assert trial.knobs == Knobs(micro_batch=8)
    assert 5 <= len(trial.window_times_s) <= 12
    assert min(trial.window_times_s) >= 0.01
    assert trial.tokens_per_s == pytest.approx(64 * len(trial.window_times_s) / sum(trial.window_times_s))
    assert trial.tokens_per_s_std_error > 0
    assert trial.loss_last < trial.loss_first == 4.0
    assert trial.software["torch"] == torch.__version__
    assert trial.missing.get("nvml") or trial.counters["gpu_memory_used_bytes"] > 0


def test_the_time_spent_waiting_for_data_is_known(tmp_path):
    def slow():
        while True:
            time.sleep(0.01)
            yield 0

    with recorder(tmp_path) as r:
        for _ in r.batches(slow()):
            if not r.step():
                break
    trial = r.trial
    assert 0.01 * len(trial.window_times_s) <= trial.data_wait_s <= sum(trial.window_times_s)


def test_memory_is_what_the_block_takes_not_what_was_there_before(tmp_path):
    with recorder(tmp_path) as r:
        model = b"x" * 2**26
        while r.step():
            time.sleep(0.002)
    # a few pages that the process held before may have gone meanwhile
    assert 0.9 * len(model) < r.trial.peak_memory_device_bytes < 1.5 * len(model)


def test_a_loop_that_goes_on_is_not_measured_any_more(tmp_path):
    with recorder(tmp_path) as r:
        steps = 1
        while r.step():
            steps += 1
            time.sleep(0.005)
        for _ in range(10):
            assert not r.step()
    assert r.trial.warmup_windows + len(r.trial.window_times_s) == steps


def test_a_loop_that_ends_in_between_is_measured_so_far(tmp_path):
    with recorder(tmp_path) as r:
        for _ in range(MEASURE.max_warmup_windows + 3):
            time.sleep(0.002)
            r.step()
    assert r.trial.status is Status.OK
    assert len(r.trial.window_times_s) >= 3
    assert r.trial.counters["cpu_user_s"] >= 0


def test_a_loop_too_short_to_measure_records_nothing_and_says_so(tmp_path):
    with pytest.warns(UserWarning, match="too few to measure"), recorder(tmp_path) as r:
        r.step()
    assert r.trial is None
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("cable fell out"), Status.CRASH), (torch.OutOfMemoryError("no room"), Status.OOM)],
)
def test_an_exception_is_recorded_and_goes_on(tmp_path, error, status):
    def loop():
        with recorder(tmp_path) as r:
            r.step()
            raise error

    with pytest.raises(type(error)):
        loop()
    (trial,) = stored(tmp_path)
    assert trial.status is status
    assert str(error) in trial.cause
    assert trial.tokens_per_s is None


def test_a_loss_that_is_not_finite_ends_the_loop_as_diverged(tmp_path):
    def loop(r):
        with r:
            r.step(loss=1.0)
            r.step(loss=float("nan"))

    r = recorder(tmp_path)
    with pytest.raises(Diverged):
        loop(r)
    assert r.trial.status is Status.DIVERGED
    assert r.trial.loss_first == 1.0


@pytest.mark.parametrize("error", [RuntimeError("hours later"), KeyboardInterrupt()])
def test_what_was_measured_is_kept_whatever_comes_later(tmp_path, error):
    begun = datetime.now(UTC)

    def loop():
        with recorder(tmp_path) as r:
            while r.step():
                time.sleep(0.002)
            assert stored(tmp_path) == [r.trial]  # at once, not at the end of the training
            raise error

    with pytest.raises(type(error)):
        loop()
    (trial,) = stored(tmp_path)
    assert trial.status is Status.OK
    assert abs((trial.created_at - begun).total_seconds()) < 0.1
    assert trial.purpose == "history"


def test_an_exception_stays_the_users_own_when_the_store_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()

    def loop():
        with recorder(tmp_path / "file"):
            raise RuntimeError("cable fell out")

    with pytest.raises(RuntimeError, match="cable fell out") as caught:
        loop()
    assert "pretune recorded no trial" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("folder", "said"), [("file", "no trial is recorded: .*cannot be written"), (".", "mine is already in")]
)
def test_a_trial_that_cannot_be_stored_is_a_warning_and_the_training_goes_on(tmp_path, folder, said):
    (tmp_path / "file").touch()

    def trained(where):
        with recorder(where, trial_id="mine") as r:
            while r.step():
                time.sleep(0.002)
            return r

    assert trained(tmp_path).trial
    with pytest.warns(UserWarning, match=said):
        r = trained(tmp_path / folder)
    assert r.trial is None
    assert len(stored(tmp_path)) == 1


def test_stopping_by_hand_is_no_trial(tmp_path):
    with pytest.raises(KeyboardInterrupt), recorder(tmp_path):
        raise KeyboardInterrupt
    assert stored(tmp_path) == []


@pytest.mark.parametrize("code", [0, None, 3, "no such file"])
def test_leaving_with_a_code_that_says_failure_is_a_crash_and_with_none_is_no_trial(tmp_path, code):
    def loop():
        with recorder(tmp_path):
            sys.exit(code)

    with pytest.raises(SystemExit):
        loop()
    assert [trial.cause for trial in stored(tmp_path)] == ([f"SystemExit: {code}"] if code else [])


def test_a_process_that_is_killed_is_recorded_with_the_time_it_lived(tmp_path):
    code = f"""
import os, signal, time
from pretune.collector import TrialRecorder
from pretune.datasets import *
platform = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=1)
model = ModelSpec(name="tiny", layers=1, hidden_size=16, heads=2, vocabulary=32)
workload = Workload(model=model, sequence_length=8, global_batch_tokens=64)
with TrialRecorder(workload=workload, platform=platform, knobs=Knobs(), store={str(tmp_path)!r}):
    time.sleep(0.3)
    print(time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    ended = float(done.stdout)
    deadline = time.monotonic() + 30
    while not stored(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    (trial,) = stored(tmp_path)
    assert (trial.status, trial.cause) == (Status.CRASH, "rank 0 was killed, or left without a word")
    assert trial.wall_s >= 0.3
    assert (
        abs(trial.created_at.timestamp() + trial.wall_s - ended) < 1.4
    )  # not when it was recorded: 1.5 s later


def test_a_loop_without_torch_does_not_import_it(tmp_path):
    code = f"""
import sys, time
from pretune.collector import TrialRecorder
from pretune.datasets import *
from pretune.datasets.workload import Workload
platform = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=1)
model = ModelSpec(name="tiny", layers=1, hidden_size=16, heads=2, vocabulary=32)
workload = Workload(model=model, sequence_length=8, global_batch_tokens=64)
measure = Measure(max_seconds=0.05)
given = dict(workload=workload, platform=platform, knobs=Knobs(), measure=measure)
with TrialRecorder(store={str(tmp_path)!r}, **given) as r:
    while r.step():
        time.sleep(0.002)
print(r.trial.status, "torch" in sys.modules, "polars" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == [
        "ok",
        "False",
        "False",
    ]
