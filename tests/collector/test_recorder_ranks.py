"""A recorder on two ranks: they stop together, and one of them writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretune.datasets import Status, TrialStore

pytestmark = pytest.mark.slow


def run(store, mode):
    program = Path(__file__).parent / "programs" / "recorder_ranks.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    answer = subprocess.run(
        [*command, str(program), str(store), mode],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    (trial,) = TrialStore(store).trials()
    return sorted(lines, key=lambda line: line["rank"]), trial


def test_the_ranks_stop_at_the_same_step_and_the_slowest_sets_the_time(tmp_path):
    (first, second), trial = run(tmp_path, "steady")
    assert first["steps"] == second["steps"]
    assert (first["wrote"], second["wrote"]) == (True, False)
    assert trial.status is Status.OK
    assert trial.warmup_windows + len(trial.window_times_s) == first["steps"]
    assert trial.step_time_s == pytest.approx(0.05, rel=0.2)  # rank 0, which writes, would take 0.02 s alone
    assert trial.tokens_per_s_per_device == pytest.approx(64 / 0.05 / 2, rel=0.2)
    assert trial.loss_first == 1.5  # of ranks with 1.0 and 2.0
    assert len(trial.hosts) == 2


def test_a_loss_that_one_rank_loses_ends_them_all(tmp_path):
    lines, trial = run(tmp_path, "diverge")
    assert [line["ended"] for line in lines] == ["Diverged", "Diverged"]
    assert trial.status is Status.DIVERGED


def test_the_rank_that_raised_first_says_how_it_ended_not_the_one_that_lost_its_peer(tmp_path):
    (first, second), trial = run(tmp_path, "oom")
    assert (first["ended"], second["ended"]) == ("RuntimeError", "MemoryError")
    assert (first["wrote"], second["wrote"]) == (False, True)
    assert (trial.status, trial.cause) == (Status.OOM, "MemoryError: no room")
