"""A whole session whose trials run a script that knows nothing of pretune."""

from __future__ import annotations

import os
import subprocess

import pytest

from pretune.datasets import TrialStore
from pretune.errors import InputError
from pretune.mlflow_config.none import NoTracker
from pretune.tuner.job import JobSpec
from pretune.tuner.session import TuningSession

SCRIPT = """
import sys, time
batch, accumulation, steps = map(int, sys.argv[1:4])
for step in range(steps):
    time.sleep(accumulation * 0.01 * (1 + batch / 16))
    print(f"step {step} loss {3 / (step + 1):.3f}", flush=True)
"""


@pytest.fixture
def job(write_job, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    platform = {"name": "pc", "accelerator": {"name": "core"}, "devices_per_node": 1, "backend": "gloo"}
    return lambda **changes: JobSpec.from_yaml(
        write_job(
            **{
                "platform": platform,
                "launcher": {"local": {"devices": 1}},
                "framework": "torch_ddp",
                "command": "{python} train.py {micro_batch} {accumulation} {steps}",
                "space": {"micro_batch": [4, 16]},
                "default": {"micro_batch": 4},
                "history": "none",
                "budget": {"trials": 2},
                "measure": {"max_warmup_windows": 3, "max_windows": 21},
            }
            | changes
        )
    )


def test_the_fastest_configuration_of_a_script_is_found(job, tmp_path):
    answer = TuningSession(job(), tmp_path / "out", NoTracker()).run()
    assert answer.comparison.recommended.knobs.micro_batch == 16
    assert answer.comparison.speedup["default"].ratio > 1.5
    store = TrialStore(tmp_path / "out" / "trials")
    assert {trial.script.run for trial in store.trials()} == {job().command.run}
    assert [trial.cause for trial in store.trials()] == [None] * 6

    launch = [tmp_path / "out" / "launch.sh", "further"]
    three = {**os.environ, "STEPS": "3"}
    done = subprocess.run(launch, env=three, capture_output=True, text=True, check=True)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["step", f"{n}"] for n in range(3)]
    assert "STEPS" in subprocess.run(launch, capture_output=True, text=True, check=False).stderr


def test_what_every_trial_would_miss_ends_the_session_before_the_first(job, tmp_path):
    missing = job(command="{python} main.py {micro_batch} {accumulation}")
    with pytest.raises(InputError, match=r"command: main\.py is not in"):
        TuningSession(missing, tmp_path / "out", NoTracker()).run()
    assert not list(TrialStore(tmp_path / "out" / "trials").trials())
