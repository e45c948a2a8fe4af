"""A command seen from outside: which of its processes trains, and on what."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from pretune.collector.outside import Outside

BURNS = f"{sys.executable} -c 'while True: pass'"


@contextmanager
def running(script, **environment):
    command = ["bash", "-c", script]
    with subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True) as shell:
        try:
            yield shell.pid
        finally:
            os.killpg(shell.pid, signal.SIGKILL)  # one that is being forked has no parent to find it by yet


def settled(outside, wanted):
    """What ``trainer`` says once it says what is wanted, or after a while."""
    deadline = time.monotonic() + 20
    while not wanted(process := psutil.Process(outside.trainer())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return process


def test_the_lowest_rank_here_trains_not_its_launcher_nor_its_loaders():
    loader = f"({BURNS}) & RANK=2 {BURNS} & RANK=3 {BURNS} & RANK=2 sleep 100 & wait"
    ranks = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "DS_ACCELERATOR": "cpu"}
    with running(loader, **ranks) as pid:
        outside = Outside(pid)
        found = settled(outside, lambda process: process.environ().get("RANK") == "2")
        assert found.environ()["RANK"] == "2"
        busy = settled(outside, lambda process: "while True" in str(process.cmdline()))
        assert "while True" in str(busy.cmdline())
        platform = outside.platform()
    assert (platform.devices_per_node, platform.nodes, platform.backend) == (2, 2, "gloo")
    assert platform.accelerator.memory_bytes == pytest.approx(psutil.virtual_memory().total / 2, rel=0.01)
    assert Outside(pid).trainer() == pid  # it is gone, and nothing is raised


def test_without_ranks_the_busiest_process_trains():
    with running(f"sleep 100 & {BURNS} & wait", CUDA_VISIBLE_DEVICES="") as pid:
        outside = Outside(pid)
        busy = settled(outside, lambda process: "while True" in str(process.cmdline()))
        assert "while True" in str(busy.cmdline())
        assert (outside.platform().devices, outside.platform().backend) == (1, "gloo")
