"""Trials on a real Slurm of two nodes, also when a node is lost and when another job takes them away."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from slurm_cluster import MISSING, SlurmCluster
from two_nodes import TWO, WORKLOAD, ended, endless, is_measuring, ranks_tell, sheet, wait_until

from pretune.collector.launchers import launcher_for
from pretune.datasets import Status, TrialStore
from pretune.errors import LaunchError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as Slurm's daemons do"),
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no {', '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def daemons():
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = SlurmCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def cluster(daemons, monkeypatch):
    for name, value in daemons.environment.items():
        monkeypatch.setenv(name, value)
    return daemons


def slurm(folder, warm=True, **settings):
    given = {"nodes": 2, "ranks": 1, "interface": "lo"} | settings
    return launcher_for({"slurm": given, "warm": warm}, folder)


def test_ranks_run_on_the_nodes_of_an_allocation_that_ends_with_the_session(cluster, tmp_path):
    with slurm(tmp_path, warm=False) as launcher:
        ranks = ranks_tell(launcher)
        (job,) = cluster.jobs()
    assert [rank["SLURMD_NODENAME"] for rank in ranks] == ["n1", "n2"]
    assert {rank["SLURM_JOB_ID"] for rank in ranks} == {job}
    assert wait_until(lambda: not cluster.jobs(), 10)


@pytest.mark.usefixtures("cluster")
def test_what_slurm_refuses_is_said_in_its_words(tmp_path):
    with pytest.raises(LaunchError, match=r"invalid partition specified: nowhere.*--partition=nowhere"):
        ranks_tell(slurm(tmp_path, partition="nowhere"))


@pytest.mark.long
def test_trials_run_over_both_nodes_and_name_the_job(cluster, tmp_path):
    with slurm(tmp_path) as launcher:
        trials = [ended(launcher, launcher.submit(sheet(f"t{n}"))) for n in range(2)]
        (job,) = cluster.jobs()
    assert [trial.status for trial in trials] == [Status.OK] * 2, [trial.cause for trial in trials]
    assert [trial.scheduler_job for trial in trials] == [f"slurm:{job}"] * 2
    assert [len(trial.hosts) for trial in trials] == [2, 2]


@pytest.mark.long
def test_an_allocation_may_be_held_for_one_trial_only(cluster, tmp_path):
    with slurm(tmp_path, hold="trial") as launcher:
        first = ended(launcher, launcher.submit(sheet("t0")))
        assert wait_until(lambda: not cluster.jobs(), 10)
        second = ended(launcher, launcher.submit(sheet("t1")))
    assert (first.status, second.status) == (Status.OK, Status.OK)
    assert first.scheduler_job != second.scheduler_job


@pytest.mark.long
def test_a_lost_node_interrupts_the_trial_and_the_next_one_gets_another_allocation(cluster, tmp_path):
    with slurm(tmp_path) as launcher:
        handle = launcher.submit(endless("t0"))
        wait_until(lambda: is_measuring(handle))
        cluster.lose_node("n2")
        lost = ended(launcher, handle)
        cluster.start_node("n2")
        again = ended(launcher, launcher.submit(sheet("t1")))
    assert lost.status is Status.INTERRUPTED
    assert lost.cause.startswith("node failure: host n2: its agent ended with code")
    assert (again.status, again.cause) == (Status.OK, None)
    assert again.scheduler_job != lost.scheduler_job


@pytest.mark.long
def test_a_job_that_goes_first_interrupts_the_trial_which_then_waits_for_it(cluster, tmp_path):
    with slurm(tmp_path) as launcher:
        handle = launcher.submit(endless("t0"))
        wait_until(lambda: is_measuring(handle))
        cluster.ask("sbatch", "-p", "urgent", "-N2", "-o", "/dev/null", "--wrap", "sleep 5")
        preempted = ended(launcher, handle)
        again = ended(launcher, launcher.submit(sheet("t1")))
    assert preempted.status is Status.INTERRUPTED
    assert preempted.cause.startswith("preempted: ")
    assert again.status is Status.OK, again.cause


@pytest.mark.long
def test_inside_an_allocation_a_spare_node_takes_the_place_of_a_lost_one(cluster, tmp_path, monkeypatch):
    one = sheet("t").platform.model_copy(update={"nodes": 1})
    held = subprocess.Popen(
        ["salloc", "-N2", "--no-kill", "sh", "-c", "echo $SLURM_JOB_ID; exec cat >/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    monkeypatch.setenv("SLURM_JOB_ID", held.stdout.readline().strip())
    with slurm(tmp_path, nodes=1) as launcher:
        handle = launcher.submit(endless("t0", one))
        wait_until(lambda: is_measuring(handle))
        cluster.lose_node("n1")
        lost = ended(launcher, handle)
        again = ended(launcher, launcher.submit(sheet("t1", one)))
    still_there = cluster.jobs()
    cluster.start_node("n1")
    held.communicate("")
    assert lost.cause.startswith("node failure: host n1"), lost.cause
    assert again.status is Status.OK, again.cause
    assert again.scheduler_job == lost.scheduler_job
    assert still_there == [lost.scheduler_job.removeprefix("slurm:")]  # it is not pretune's to give back


@pytest.mark.long
def test_no_allocation_outlives_a_session_that_is_killed(cluster, tmp_path):
    program = f"""
from pretune.collector.launchers import launcher_for
launcher = launcher_for({{"slurm": {{"nodes": 2, "ranks": 1}}, "warm": False}}, {str(tmp_path)!r})
launcher._connect()
print("connected", flush=True)
import time; time.sleep(600)
"""
    session = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert session.stdout.readline() == b"connected\n"
    assert len(cluster.jobs()) == 1
    session.kill()
    session.communicate()
    assert wait_until(lambda: not cluster.jobs(), 20)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_batch_script_of_the_page_goes_on_where_it_was_when_it_is_requeued(cluster, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "schedulers.md").read_text(encoding="utf-8")
    script = re.search(r"```sh\n(#!/bin/bash.*?)```", page, re.S)[1]
    script = re.sub(r"#SBATCH --gpus.*\n", "", script)
    script = script.replace("--out tuned", "--out tuned --tracking none")
    script = script.replace("source venv/bin/activate", f"PATH={Path(sys.executable).parent}:$PATH")
    (tmp_path / "tune.sh").write_text(script)
    (tmp_path / "slurm.yaml").write_text(yaml.safe_dump(small_job()))
    job = cluster.ask("sbatch", "--parsable", "-D", str(tmp_path), "--mincpus=1", str(tmp_path / "tune.sh"))
    store = TrialStore(tmp_path / "tuned" / "trials")
    wait_until(lambda: list(store.trials()) or not cluster.jobs(), 500)
    cluster.ask("scontrol", "requeue", job)
    before = [trial.trial_id for trial in store.trials()]
    wait_until(lambda: not cluster.jobs(), 500)
    trials = list(store.trials())
    print((tmp_path / f"pretune-{job}.log").read_text())
    assert [trial.status for trial in trials] == [Status.OK] * len(trials)
    assert {trial.scheduler_job for trial in trials} == {f"slurm:{job}"}
    assert len({trial.trial_id for trial in trials}) == len(trials) > len(before)
    assert sum(trial.purpose == "search" for trial in trials) == 3
    assert (tmp_path / "tuned" / "best.json").exists()


def small_job():
    return {
        **WORKLOAD.model_dump(mode="json"),
        "platform": TWO.model_dump(mode="json"),
        "launcher": {"slurm": {"nodes": 2, "ranks": 1, "interface": "lo"}},
        "space": {"micro_batch": [1, 2, 4], "zero_stage": [0, 1]},
        "strategy": "random",
        "history": "none",
        "budget": {"trials": 3},
        "measure": {"max_warmup_windows": 2, "max_windows": 6},
        "verify_pairs": 2,
    }
