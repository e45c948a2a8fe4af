"""Sessions of real trials on this machine, killed with SIGKILL at moments that are seen from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings

import psutil
import pytest

from pretune.datasets import TrialStore

TRIAL = "runs/*-t000"
# what there is to see when the session is killed: the launch, each phase of a trial, its evidence, its record
MOMENTS = {
    "launch": lambda out: list(out.glob("runs/agent-0.log")),
    "sheet": lambda out: list(out.glob(f"{TRIAL}/spec.json")),
    **{
        phase: lambda out, phase=phase: any(
            f'"{phase}"' in path.read_text() for path in out.glob(f"{TRIAL}/progress.json")
        )
        for phase in ("import", "init", "build", "warmup", "measure")
    },
    "result": lambda out: list(out.glob(f"{TRIAL}/result.json")),
    "ended": lambda out: list(out.glob(f"{TRIAL}/ended.json")),
    "record": lambda out: list(out.glob("trials/*/*-t000.parquet")),
    "comparison": lambda out: list(out.glob("runs/*-v01-*/progress.json")),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture
def job(write_job):
    def write(warm):
        return write_job(
            model="gpt-tiny",
            sequence_length=64,
            global_batch_tokens=256,
            platform="auto",
            launcher={"local": {"devices": 2}, "warm": warm},
            history="none",
            strategy="transfer",
            space={"micro_batch": [2], "zero_stage": [0, 1]},
            default={"micro_batch": 2},
            budget={"trials": 2},
            verify_pairs=2,
            measure={"min_windows": 2, "max_windows": 2, "max_seconds": 1.0, "max_warmup_windows": 2},
        )

    return write


def check(job, out, moment, tracking):
    command = [sys.executable, "-m", "pretune.cli", "tune", str(job), "--out", str(out), *tracking, "--json"]
    session = psutil.Popen(command, stdout=subprocess.DEVNULL)
    wait_for(lambda: MOMENTS[moment](out), 120)
    family = session.children(recursive=True)
    session.kill()
    session.wait()
    assert family
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []

    before = {trial.trial_id: trial.created_at for trial in TrialStore(out / "trials").trials()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [trial["status"] for trial in answer["trials"]["list"]] == ["ok", "ok"]
    store = TrialStore(out / "trials")
    trials = list(store.trials())
    ids = [trial.trial_id for trial in trials]
    assert len(ids) == len(set(ids))
    assert before.items() <= {trial.trial_id: trial.created_at for trial in trials}.items()
    assert store.validate() == []
    return answer, trials


@pytest.mark.long
def test_killed_while_a_trial_runs_it_leaves_no_process_and_goes_on(job, tmp_path):
    check(job(True), tmp_path / "out", "measure", ["--tracking", "none"])


@pytest.mark.long
@pytest.mark.timeout(900)  # a cold session is a dozen torchruns, twice
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_killed_at_any_moment_it_leaves_no_process_and_goes_on(job, tmp_path, moment, warm):
    out = tmp_path / "out"
    answer, trials = check(job(warm), out, moment, [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of MLflow's own libraries
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{out}/mlflow.db")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(experiments, "tags.`pretune.kind` = 'trial'")
        status = client.get_run(answer["mlflow_run_id"]).info.status
    assert sorted(run.data.tags["pretune.trial_id"] for run in runs) == sorted(t.trial_id for t in trials)
    assert status == "FINISHED"


def wait_for(seen, timeout_s):
    limit = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < limit, "nothing happened"
        time.sleep(0.02)
