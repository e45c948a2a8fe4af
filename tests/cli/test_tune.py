"""The command as users start it: a process, its two streams and its exit code."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from pretune.cli import app
from pretune.collector.launchers.replay import ReplayLauncher
from pretune.datasets import TrialStore


def test_json_is_one_object_and_progress_is_on_standard_error(pretune, write_job, tmp_path):
    done = pretune("tune", write_job(strategy="random"), "--budget", 3, "--json", "--tracking", "none")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {"session", "trials", "best", "default", "speedup", "store", "mlflow_run_id", "files"} <= set(
        answer
    )
    assert answer["trials"]["number"] == 3
    for measured in (answer["best"], answer["default"]):
        assert {"knobs", "tokens_per_s_per_device", "spread"} <= set(measured)
    assert len(TrialStore(tmp_path / answer["store"])) > 3
    assert "-t002: " in done.stderr
    assert re.search(r"-v01-[0-9a-f]{4}-winner: ok: ", done.stderr)


def test_the_result_is_read_by_people_too(pretune, write_job):
    done = pretune("tune", write_job(), "--tracking", "none", "--out", "here")
    assert "of the stock defaults" in done.stdout
    assert "launch.sh: here/launch.sh" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "changes", "says"),
    [
        ([], {"strategy": "guess"}, "strategy"),
        (["--strategy", "guess"], {}, "command line: strategy"),
        (["--history", "nowhere"], {}, "nowhere: holds no trials"),
        ([], {"space": {"micro_bath": 1}}, "micro_bath is no knob"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(pretune, write_job, arguments, changes, says):
    done = pretune("tune", write_job(**changes), "--tracking", "none", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_a_missing_job_is_one_line_and_exit_code_2(pretune):
    done = pretune("tune", "nowhere.yaml")
    assert done.returncode == 2
    assert (
        done.stderr == "pretune: nowhere.yaml: cannot be read (No such file or directory); check the path\n"
    )


def test_when_nothing_ran_the_exit_code_is_1(pretune, write_job):
    space = {
        "micro_batch": [8],
        "zero_stage": [0, 1],
        "reduce_bucket_size": 5_000_000,
        "activation_checkpointing": "none",
    }
    done = pretune("tune", write_job(space=space), "--tracking", "none")
    assert done.returncode == 1
    assert "none of 2 trials ran" in done.stdout


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(write_job, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ReplayLauncher, "poll", interrupt)
    arguments = ["tune", str(write_job()), "--tracking", "none", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 130
    assert "interrupted; to go on: pretune " in done.stderr
