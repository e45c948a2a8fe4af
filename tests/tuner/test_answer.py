from __future__ import annotations

import os
import subprocess

import pytest

from pretune.datasets import Knobs
from pretune.datasets.frameworks import framework
from pretune.tuner.answer import launch_script, sentence
from pretune.tuner.verify import Ratio


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Ratio(1.5, 1.2, 1.8, 5), "1.50x of the default (1.20 to 1.80, 95 % of 5 pairs)"),
        (Ratio(1.1, 0.9, 1.3, 5), "no difference is shown"),
        (Ratio(0.8, 0.7, 0.9, 5), "0.80x of the default (0.70 to 0.90, 95 % of 5 pairs): slower"),
        (Ratio(1.0, 1.0, 1.0, 5, same=True), "the winner is the default: 1.00x"),
        (Ratio(1.4, None, None, 1), "one pair, no interval"),
        (Ratio(None, None, None, 0), "there is no ratio"),
    ],
)
def test_a_sentence_claims_no_more_than_its_interval(found, says):
    assert says in sentence("the default", found)


@pytest.fixture
def script(workload, target):
    def write(name="deepspeed", interfaces=(), platform=target, **knobs):
        one = framework(name)
        return launch_script(
            one, workload, platform, one.resolve(workload, platform, Knobs(**knobs)), interfaces
        )

    return write


def test_the_launch_script_sets_what_the_winner_needs(script):
    script = script(threads_per_rank=3, attention="eager", **{"env.NCCL_ALGO": "Tree; rm -rf x"})
    assert "export OMP_NUM_THREADS=3" in script
    assert "export NCCL_ALGO='Tree; rm -rf x'" in script
    assert "#   attention: eager" in script
    assert script.rstrip().endswith('--master_port "${MASTER_PORT:-29500}" "$@"')


def test_it_says_how_a_script_of_that_framework_takes_the_file(script):
    deepspeed, ddp = script(), script("torch_ddp", micro_batch=4)
    assert "train.py --deepspeed_config ds_config.json" in deepspeed
    assert "#   optimizer: torch.optim.AdamW" in deepspeed
    assert "deepspeed_config" not in ddp
    assert "#   DistributedDataParallel: with the arguments in ddp.json" in ddp
    assert "#   micro_batch: 4" in ddp


def test_training_takes_the_interface_that_the_trials_took(script):
    assert "SOCKET_IFNAME" not in script(interfaces=[None, None])
    same = exported(script(interfaces=["eth1", "eth1"]), node=1)
    assert same == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth1"}
    differing = script(interfaces=["eth0", "ib 0"])
    assert exported(differing, node=0)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert exported(differing, node=1)["NCCL_SOCKET_IFNAME"] == "ib 0"
    asked = script(interfaces=["eth0", "eth0"], **{"env.GLOO_SOCKET_IFNAME": "lo"})
    assert exported(asked, node=0)["GLOO_SOCKET_IFNAME"] == "lo"


def exported(script, node):
    """The interface variables that a script hands to torchrun on a node."""
    shown = script.replace("exec torchrun", "exec env #")
    environment = {"PATH": os.environ["PATH"], "NODE_RANK": str(node)}
    done = subprocess.run(
        ["sh", "-e", "-c", shown], env=environment, capture_output=True, text=True, check=True
    )
    pairs = (line.split("=", 1) for line in done.stdout.splitlines())
    return {name: value for name, value in pairs if name.endswith("SOCKET_IFNAME")}
