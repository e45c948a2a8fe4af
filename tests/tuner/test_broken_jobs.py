"""Jobs that are broken on purpose, each found before a trial is spent, in one line that says what to mend.

How scripts fail that could be started is told in tests/collector/test_script_program.py.
"""

from __future__ import annotations

import re
import socket
import sys

import pytest

from pretune.errors import InputError
from pretune.tuner.job import JobSpec
from pretune.tuner.preflight import preflight

MODEL = {"name": "tiny", "layers": 2, "hidden_size": 64, "heads": 2, "vocabulary": 256}
CPU = {"name": "core", "memory_bytes": 8 * 10**9}
TRAIN = "{python} train.py --micro-batch {micro_batch} --accumulation {accumulation}"
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch", type=int)
parser.add_argument("--accumulation", type=int)
parser.parse_args()
"""
SOUND = {
    "model": MODEL,
    "sequence_length": 64,
    "global_batch_tokens": 1024,
    "precision": "fp32",
    "framework": "torch_ddp",
    "platform": {"name": "pc", "accelerator": CPU, "devices_per_node": 1, "backend": "gloo"},
    "launcher": {"local": {"devices": 1}},
    "command": TRAIN,
    "history": "none",
    "space": {"micro_batch": [1, 2, 4]},
    "default": None,
}


def with_command(words, **how):
    return {"command": {"run": f"{TRAIN} {words}", **how}}


def with_host(**host):
    return {"launcher": {"hosts": [{"interface": "lo", **host}]}}


def with_platform(**fields):
    return {"platform": SOUND["platform"] | fields}


UNREACHABLE = ["sh", "-c", "echo 'ssh: connect to host node9 port 22: No route to host' >&2; exit 255", "ssh"]

REFUSED = {  # the file alone tells
    "no model": ({"model": None}, "job.yaml: model: Field required"),
    "a model without its layers": (
        {"model": {name: value for name, value in MODEL.items() if name != "layers"}},
        r"job.yaml: model: layers: Field required",
    ),
    "no memory": (
        with_platform(accelerator=CPU | {"memory_bytes": 0}),
        r"platform: accelerator\.memory_bytes: .*greater than 0, got 0",
    ),
    "a placeholder that stands for nothing": (
        with_command("--lr {learning_rate}"),
        r"command: \{learning_rate\} stands for nothing; known: devices, .*",
    ),
    "an open brace": (with_command("{"), "command: run: .*write a brace that is no placeholder twice"),
    "an open quotation": (with_command("'"), "command: run: No closing quotation"),
    "a knob that the script is not told": (
        {"space": {"micro_batch": [1], "activation_checkpointing": ["none", "full"]}},
        r"activation_checkpointing differs between trials, and the script is not told: put \{activation_c",
    ),
    "a misspelt knob": ({"space": {"micro_bach": [1, 2]}}, "micro_bach differs between trials"),
    "a pattern that is none": (
        with_command("", step_line="step (?P<"),
        "step_line: is no regular expression",
    ),
    "an importer that is none": (
        with_command("", log_format="megatorn"),
        "'megatorn' is nothing that training prints; known: deepspeed, ",
    ),
    "a batch that no micro batch makes": (
        {"global_batch_tokens": 1000},
        "global_batch_tokens 1000 is no whole number of sequences",
    ),
    "fewer ranks than devices": (
        with_platform(devices_per_node=2),
        "launcher: starts 1 ranks on each of 1 hosts, but platform pc has devices_per_node 2",
    ),
    "a GPU job on a machine without": (
        with_platform(backend="nccl"),
        "platform pc: backend: is nccl, but this machine has no GPU",
    ),
}

FOUND = {  # it takes a look at the hosts
    "a folder that is not there": (
        {"command": {"run": TRAIN, "folder": "code"}},
        "host 127.0.0.1: command: folder .*code is not there; every host must see it",
    ),
    "a script that is not there": (
        {"command": TRAIN.replace("train.py", "main.py")},
        "host 127.0.0.1: command: main.py is not in .*; check the path",
    ),
    "a program that is not installed": (
        {"command": TRAIN.replace("{python}", "torchrum")},
        r"command: torchrum is no program here; give its path, or \{python\} -m its module",
    ),
    "a module that is not installed": (
        {"command": TRAIN.replace("{python}", "{python} -m deepsped")},
        "command: .*python.* has no module deepsped; install it there",
    ),
    "an option that the script does not take": (
        {"command": TRAIN.replace("micro-batch", "mbs")},
        "command: train.py takes no --mbs, by its --help; check the spelling",
    ),
    "an unreachable host": (
        with_host(prefix=UNREACHABLE),
        r"launcher: host 127.0.0.1: its agent ended with code 255; .*No route to host\)",
    ),
    "no interpreter on the host": (
        with_host(prefix=["nice"], python="/opt/no/python3"),
        "launcher: host 127.0.0.1: its agent ended with code 127; .*/opt/no/python3.*No such file",
    ),
    "a default that cannot fit": (
        with_platform(accelerator=CPU | {"memory_bytes": 10**6}),
        "default: needs about .* GiB a device by physics, which has 0.0",
    ),
}


@pytest.fixture
def job(write_job, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return lambda changes: write_job(**SOUND | changes)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_file_tells_is_refused_in_one_line(job, tmp_path, name):
    changes, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as caught:
        preflight(JobSpec.from_yaml(job(changes)), tmp_path / "out", speeds=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FOUND)
def test_what_a_host_tells_is_found_before_a_trial_is_spent(job, tmp_path, name):
    changes, message = FOUND[name]
    found = preflight(JobSpec.from_yaml(job(changes)), tmp_path / "out", speeds=False)
    assert not found.ready
    (problem,) = map(str, found.problems)
    assert re.search(message, problem), problem
    assert "\n" not in problem


def test_a_port_that_is_taken_is_found(job, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launch = f"{sys.executable} -m torch.distributed.run --master_port {port} "
        found = preflight(
            JobSpec.from_yaml(job({"command": launch + TRAIN.removeprefix("{python} ")})),
            tmp_path / "out",
            speeds=False,
        )
    assert [str(each) for each in found.problems] == [
        f"host 127.0.0.1: command: port {port}: Address already in use; write {{master_port}}, which is free"
    ]


def test_a_sound_job_is_ready(job, tmp_path):
    assert preflight(JobSpec.from_yaml(job({})), tmp_path / "out", speeds=False).ready
