"""What changes the numerics is used only if a fixed-seed run learns as the reference does."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from pretune.datasets import Knobs, Trial, TrialStore
from pretune.tuner.numerics import CHECKED, STEPS, changes, fastest_that_learns

NUMBERS = itertools.count()
DEFAULT = Knobs(micro_batch=1, zero_stage=2)


def knobs(**settings):
    return Knobs(micro_batch=1, zero_stage=2, **settings)


@pytest.fixture
def recorded_trial(workload, target):
    def make(knobs, speed, **fields):
        ran = {"status": "ok", "tokens_per_s": 2 * (speed or 0), "tokens_per_s_per_device": speed}
        sheet = {
            "trial_id": f"trial-{next(NUMBERS)}",
            "workload": workload,
            "platform": target,
            "framework": "deepspeed",
            "knobs": knobs,
            "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        }
        return Trial.from_mapping(sheet | (ran if speed else {}) | fields, "test")

    return make


@pytest.fixture
def searched(recorded_trial):
    def make(**speeds):
        return [recorded_trial(knobs(communication_data_type=name), speed) for name, speed in speeds.items()]

    return make


class Runs:
    """Runs every configuration to the loss that it is told to end at; the reference falls from 10 to 8."""

    def __init__(self, recorded_trial, steps=STEPS, **losses):
        self.recorded_trial, self.losses, self.asked, self.steps = recorded_trial, losses, [], steps

    def __call__(self, suffix, measure, knobs):
        self.asked.append(suffix)
        assert measure == CHECKED
        kind = knobs.settings().get("communication_data_type")
        loss = self.losses.get(str(kind), 8.0)
        if loss == "late":
            return None
        status = {"status": "diverged", "cause": "nan"} if loss == "nan" else {}
        losses = {} if loss is None or loss == "nan" else {"loss_first": 10.0, "loss_last": loss}
        windows = {"window_times_s": (0.1,) * (self.steps - 1), "warmup_windows": 1}
        return self.recorded_trial(knobs, None if status else 1.0, **status, **losses, **windows)


def test_the_fastest_is_used_when_it_learns(searched, recorded_trial):
    runs = Runs(recorded_trial, bf16=8.05)
    found, checks = fastest_that_learns(searched(bf16=200.0, fp16=100.0), DEFAULT, "deepspeed", runs)
    assert found.settings()["communication_data_type"] == "bf16"
    assert [check.learns for check in checks] == [True]
    assert checks[0].share == pytest.approx(0.975)
    assert "8.05 after 20 steps, 8 without" in checks[0].sentence()


@pytest.mark.parametrize("loss", [9.5, "nan"])
def test_one_that_does_not_learn_gives_way_to_the_next(searched, recorded_trial, loss):
    runs = Runs(recorded_trial, bf16=loss)
    trials = searched(bf16=200.0, fp16=100.0)
    found, checks = fastest_that_learns([*trials, *trials], DEFAULT, "deepspeed", runs)
    assert found.settings()["communication_data_type"] == "fp16"
    assert [check.learns for check in checks] == [False, True]
    assert "not used" in checks[0].sentence()
    assert len(runs.asked) == 4  # each once, and the reference's run is found again by its name
    assert len(set(runs.asked)) == 3


def test_the_default_remains_where_nothing_learns(searched, recorded_trial):
    runs = Runs(recorded_trial, bf16=9.9, fp16="nan")
    found, checks = fastest_that_learns(searched(bf16=2.0, fp16=1.0), DEFAULT, "deepspeed", runs)
    assert found == DEFAULT
    assert [check.learns for check in checks] == [False, False]


def test_what_computes_the_same_is_not_checked(recorded_trial):
    trials = [recorded_trial(Knobs(micro_batch=4, zero_stage=1), 3.0)]
    runs = Runs(recorded_trial)
    assert fastest_that_learns(trials, DEFAULT, "deepspeed", runs) == (trials[0].knobs, [])
    assert runs.asked == []
    assert fastest_that_learns([], DEFAULT, "deepspeed", runs) == (None, [])


@pytest.mark.parametrize(
    ("losses", "steps", "why"),
    [
        ({"bf16": "late"}, STEPS, "the time was over"),
        ({"bf16": None}, STEPS, "told no loss"),
        ({"None": 10.5}, STEPS, "the reference learned nothing"),
        ({"None": "nan"}, STEPS, "the reference ended with diverged"),
    ],
)
def test_what_cannot_be_checked_is_used_and_said(searched, recorded_trial, losses, steps, why):
    runs = Runs(recorded_trial, steps, **losses)
    found, checks = fastest_that_learns(searched(bf16=2.0), DEFAULT, "deepspeed", runs)
    assert found.settings()["communication_data_type"] == "bf16"
    assert checks[0].learns is None
    assert why in checks[0].sentence()


def test_changes_are_those_of_declared_numerics_beyond_the_default():
    ours = knobs(communication_data_type="bf16", zero_quantized_weights=True)
    assert changes("deepspeed", ours, DEFAULT) == {
        "communication_data_type": "bf16",
        "zero_quantized_weights": True,
    }
    assert changes("deepspeed", ours, ours) == {}


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_real_session_checks_a_gradient_type_by_its_loss_and_rehearses(write_job, tmp_path):
    job = write_job(
        model="gpt-tiny",
        sequence_length=64,
        global_batch_tokens=512,
        platform="auto",
        launcher={"local": {"devices": 2}},
        history="none",
        space={"micro_batch": [4], "zero_stage": [1], "communication_data_type": ["bf16"]},
        allow_numerics=True,
        default={"micro_batch": 4, "zero_stage": 1},
        budget={"trials": 1},
        verify_pairs=2,
        verify={"minutes": 0.05, "checkpoint_steps": 5},
        measure={"min_windows": 2, "max_windows": 2, "max_seconds": 1.0, "max_warmup_windows": 2},
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pretune.cli", "tune", str(job), "--out", str(out), "--tracking", "none"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["rehearsal"]["checkpoints_s"]
    assert not list(out.rglob("checkpoint"))  # it was only to see how long it takes
    (check,) = answer["numerics"]
    assert check["changes"] == {"communication_data_type": "bf16"}
    assert check["learns"] is True
    trials = {trial.trial_id: trial for trial in TrialStore(out / "trials").trials()}
    checked, reference = trials[check["trial_id"]], trials[check["reference_id"]]
    assert checked.knobs.settings()["communication_data_type"] == "bf16"
    assert len(checked.window_times_s) + checked.warmup_windows == STEPS
    assert checked.loss_first == pytest.approx(reference.loss_first, rel=1e-4)  # the same seed and data
    assert checked.loss_last < checked.loss_first - 0.1
