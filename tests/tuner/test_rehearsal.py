from __future__ import annotations

import numpy as np
import pytest

from pretune.collector.evidence import write_json
from pretune.collector.launchers.replay import ReplayLauncher
from pretune.datasets import TrialStore
from pretune.datasets.trial import Measure
from pretune.errors import InputError
from pretune.mlflow_config import NoTracker
from pretune.tuner.job import JobSpec
from pretune.tuner.rehearsal import described, memory_slope
from pretune.tuner.runner import Watcher
from pretune.tuner.session import TuningSession
from pretune.tuner.verify import Measured, Verify

MIB = 2**20


def trail(per_hour_mib, noise_mib=1.0, looks=200, every_s=3.0):
    rng = np.random.default_rng(0)
    at = np.arange(looks) * every_s
    used = 2**30 + per_hour_mib * MIB * at / 3600 + rng.normal(0, noise_mib * MIB, looks)
    return list(zip((1.7e9 + at).tolist(), used.tolist(), strict=True))


def test_the_slope_of_memory_is_found_with_its_interval():
    low, middle, high = memory_slope(trail(60.0))
    assert low < middle < high
    assert middle * 3600 == pytest.approx(60 * MIB, rel=0.1)
    low, _, high = memory_slope(trail(0.0))
    assert low < 0 < high
    assert memory_slope(trail(60.0, looks=9)) is None


@pytest.fixture
def ran(recorded):
    trial = next(t for t in TrialStore(recorded).trials() if t.ok)
    slowing = [1.0] * 10 + [1.25] * 20
    return trial.model_copy(
        update={
            "window_times_s": slowing,
            "warmup_windows": 5,
            "wall_s": 50.0,
            "peak_memory_device_bytes": 7 * 10**9,
        }
    )


def test_it_tells_goodput_drift_and_when_the_device_is_full(ran):
    measured = Measured(ran.knobs, [ran])
    found = described(ran, trail(1000.0), measured)
    assert found.goodput == pytest.approx(ran.tokens_per_s_per_device * 35 * 35 / 30 / 50)
    assert found.drift == pytest.approx(0.8)
    assert found.of_compared == pytest.approx(1.0)
    assert found.full_after_s == pytest.approx(1e9 / (1000 * MIB / 3600), rel=0.05)
    speed, memory = found.sentences()
    assert "its end 0.80x of its beginning" in speed
    assert "memory grows by " in memory
    assert "the device is full after 1.0 h" in memory
    assert "no growth of memory is shown" in described(ran, trail(0.0), measured).sentences()[1]
    assert "too short to tell" in described(ran, [], measured).sentences()[1]


def test_it_measures_for_the_minutes_that_were_asked_for():
    usual = Measure()
    longer = Verify(minutes=10).measure(usual)
    assert longer.max_seconds == 600
    assert longer.timeout_s > 600
    assert longer.min_warmup_windows == usual.min_warmup_windows


def test_checkpoints_take_their_share_of_the_time(ran, write_job):
    found = described(ran, [], Measured(ran.knobs, [ran]), [1.0, 4.0])
    assert "2 checkpoints of 2.5 s each, 10 % of the time" in found.sentences()[1]
    assert Verify(minutes=1, checkpoint_steps=7).measure(Measure()).checkpoint_steps == 7
    own = write_job(command="python train.py {micro_batch}", verify={"minutes": 1, "checkpoint_steps": 7})
    with pytest.raises(InputError, match="a command writes its own checkpoints; leave it out"):
        JobSpec.from_yaml(own)


def test_a_session_ends_with_it_and_does_not_run_it_again(write_job, tmp_path, monkeypatch):
    submitted = []

    def submit(self, spec, real=ReplayLauncher.submit):
        submitted.append(spec)
        if spec.trial_id.endswith("rehearsal"):
            (tmp_path / "out/runs" / spec.trial_id).mkdir(parents=True, exist_ok=True)
            write_json(tmp_path / "out/runs" / spec.trial_id / "memory.json", trail(0.0))
        return real(self, spec)

    monkeypatch.setattr(ReplayLauncher, "submit", submit)

    def run(**changes):
        return TuningSession(
            JobSpec.from_yaml(write_job(**changes)), tmp_path / "out", NoTracker(), Watcher()
        ).run()

    assert run().asdict()["rehearsal"] is None
    before = len(submitted)
    answer = run(verify={"minutes": 3})  # may be asked for later
    assert [spec.measure.max_seconds for spec in submitted[before:]] == [180]
    assert submitted[-1].knobs == answer.comparison.recommended.knobs
    assert "rehearsal of " in answer.sentences()[-2]
    assert run(verify={"minutes": 3}).asdict()["rehearsal"] == answer.asdict()["rehearsal"]
    assert len(submitted) == before + 1
