"""``pretune preflight``: the exit code tells, the lines say what to mend."""

import json

import pytest
import yaml


@pytest.fixture
def job(tmp_path):
    def write(**changes):
        (tmp_path / "train.py").write_text("print('usage: train.py [--batch N]')\n")
        platform = {"name": "pc", "accelerator": {"name": "core"}, "devices_per_node": 1, "backend": "gloo"}
        described = {
            "model": {"name": "m", "layers": 1, "hidden_size": 8, "heads": 1, "vocabulary": 16},
            "sequence_length": 8,
            "global_batch_tokens": 64,
            "framework": "torch_ddp",
            "platform": platform,
            "launcher": {"local": {"devices": 1}},
            "command": "{python} train.py --batch {micro_batch}",
            "space": {"micro_batch": 8},
            "default": {"micro_batch": 8},
            **changes,
        }
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(described))
        return path

    return write


def test_exit_codes_tell_whether_trials_can_run(pretune, job, tmp_path):
    out = ("--out", tmp_path / "out", "--quick")
    ready = pretune("preflight", job(), *out, "--json")
    assert ready.returncode == 0, ready.stderr
    assert json.loads(ready.stdout) == {"ready": True, "problems": [], "warnings": [], "nodes": []}

    found = pretune("preflight", job(command="{python} train.py --size {micro_batch}"), *out)
    assert found.returncode == 1
    assert found.stdout.splitlines() == [
        "host 127.0.0.1: command: train.py takes no --size, by its --help; check the spelling",
        "not ready: 1 problem",
    ]

    wrong = pretune("preflight", job(command="train.py {size}"), *out)
    assert wrong.returncode == 2
    assert "command: {size} stands for nothing; known: devices" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1
