"""``pretune check``: the exit code tells, the lines say what to do."""

import json
from pathlib import Path

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def test_exit_codes_tell_what_can_run(pretune, tmp_path):
    config = {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    legal = pretune("check", path, "--devices", "4", "--json")
    assert legal.returncode == 0, legal.stderr
    verdict = json.loads(legal.stdout)
    assert verdict["legal"]
    assert verdict["problems"] == []
    assert verdict["resolved"]["config"]["gradient_accumulation_steps"] == 3

    refused = pretune("check", path, "--devices", "4+1", "--json")
    assert refused.returncode == 1
    (problem,) = json.loads(refused.stdout)["problems"]
    assert problem["field"] == "train_batch_size"
    assert problem["nearest"] == [80, 120]
    assert problem["nearest_devices"] == [4, 6]

    shown = pretune("check", path, "--devices", "5")
    assert shown.returncode == 1
    assert "nearest: 80, 120; or on 4 or 6 devices" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "not legal: 1 problem"

    wrong = pretune("check", path, "--devices", "some")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("pretune: --devices 'some'")


def test_a_job_is_legal_when_any_of_its_space_can_run(pretune):
    found = pretune("check", QUICKSTART, "--devices", "2")
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].startswith("legal: ")
    assert pretune("check", QUICKSTART, "--devices", "7").returncode == 1
