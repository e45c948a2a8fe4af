"""A session of real trials on this machine, killed while one runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest

from pretune.datasets import TrialStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


def test_killed_while_a_trial_runs_it_leaves_no_process_and_goes_on(write_job, tmp_path):
    job = write_job(
        model="gpt-tiny",
        sequence_length=64,
        global_batch_tokens=256,
        platform="auto",
        launcher={"local": {"devices": 2}},
        history="none",
        strategy="random",
        space={"micro_batch": [2], "zero_stage": [0, 1]},
        default={"micro_batch": 2},
        budget={"trials": 2},
        measure={"min_windows": 2, "max_windows": 2, "max_seconds": 1.0, "max_warmup_windows": 2},
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pretune.cli", "tune", str(job), "--out", str(out), "--tracking", "none"]
    session = psutil.Popen([*command, "--json"], stdout=subprocess.DEVNULL)
    wait_for(lambda: list(out.glob("runs/*-t000/progress.json")), 120)
    family = session.children(recursive=True)
    assert family
    session.kill()
    session.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []

    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [trial["status"] for trial in answer["trials"]["list"]] == ["ok", "ok"]
    store = TrialStore(out / "trials")
    ids = [trial.trial_id for trial in store.trials()]
    assert len(ids) == len(set(ids))
    assert store.validate() == []


def wait_for(seen, timeout_s):
    limit = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < limit, "nothing happened"
        time.sleep(0.2)
