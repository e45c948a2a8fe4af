"""A look at nodes before a trial is spent: the slow one is named, and so is the one that sees other files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pretune.collector.readiness import findings
from pretune.datasets import Knobs, Platform, TrialSpec
from pretune.tuner.job import JobSpec
from pretune.tuner.preflight import NodeSpeed, preflight, slow_nodes

QUOTA = Path("/sys/fs/cgroup/cpu/pretune-slow")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_a_node_that_is_slower_than_the_others_is_named():
    def node(number, matmul_s=0.010, all_reduce_s=0.002):
        return NodeSpeed(number, f"n{number}", matmul_s, all_reduce_s)

    assert slow_nodes([node(0), node(1, matmul_s=0.012), node(2)]) == []
    assert slow_nodes([node(0, matmul_s=9.0, all_reduce_s=None)]) == []  # nobody to be slower than
    (slow,) = slow_nodes([node(0), node(1, matmul_s=0.02), node(2)])
    assert str(slow).startswith("node 1 (n1): a matrix product takes 20 ms, and 10 ms on the others")
    (link,) = slow_nodes([node(0, all_reduce_s=0.004), node(1), node(2)])
    assert str(link).startswith("node 0 (n0): an all-reduce within the node takes 4 ms")


@pytest.mark.parametrize(("visible", "wanted"), [("0,1", 4), ("", 1)])
def test_a_node_with_fewer_gpus_than_the_platform_says_so(workload, tmp_path, monkeypatch, visible, wanted):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    accelerator = {"name": "h100-sxm-80gb"}
    platform = Platform(name="p", accelerator=accelerator, devices_per_node=wanted, backend="nccl")
    spec = TrialSpec(trial_id="t", workload=workload, platform=platform, knobs=Knobs(micro_batch=1))
    count = len([each for each in visible.split(",") if each])
    assert next(findings(spec, tmp_path)) == (
        "devices",
        f"{count} GPUs are here, and the platform has {wanted} on every node",
    )


def test_an_interpreter_without_the_libraries_of_a_trial_is_named(workload, target, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    spec = TrialSpec(trial_id="t", workload=workload, platform=target, knobs=Knobs(micro_batch=1))
    assert [reason for _, reason in findings(spec, tmp_path)] == [
        f"{sys.executable} has no {name}; install it there, or name another interpreter"
        for name in ("torch", "deepspeed")
    ]


def hosts_job(write_job, *hosts):
    platform = {"name": "two", "accelerator": {"name": "core"}, "devices_per_node": 1, "backend": "gloo"}
    alike = [{"address": "127.0.0.1", "interface": "lo", "prefix": ["nice"], **host} for host in hosts]
    changes = {"platform": platform | {"nodes": len(hosts)}, "launcher": {"hosts": alike, "warm": False}}
    return JobSpec.from_yaml(write_job(**changes, framework="torch_ddp", space={"micro_batch": [1, 2]}))


@pytest.mark.system
@needs_root
def test_a_host_that_sees_another_folder_of_that_name_is_named(write_job, tmp_path):
    (tmp_path / "out").mkdir()
    hidden = f'mount -t tmpfs none {tmp_path / "out"} && mkdir -p {tmp_path}/out/preflight/hosts && exec "$@"'
    job = hosts_job(write_job, {}, {"prefix": ["unshare", "-m", "sh", "-c", hidden, "sh"]})
    (problem,) = preflight(job, tmp_path / "out", speeds=False).problems
    assert "does not see" in str(problem)
    assert "--out must be a folder that every host sees" in str(problem)


@pytest.mark.long
@pytest.mark.system
@needs_root
@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists(), reason="no cpu control groups v1"
)
def test_a_throttled_node_is_found_by_its_matrix_product(write_job, tmp_path):
    QUOTA.mkdir(exist_ok=True)
    try:
        (QUOTA / "cpu.cfs_quota_us").write_text("20000")  # of 100000: a fifth of a core
        job = hosts_job(write_job, {}, {"rank_cgroups": [str(QUOTA)]})
        found = preflight(job, tmp_path / "out")
    finally:
        QUOTA.rmdir()
    assert [problem.field for problem in found.problems] == [f"node 1 ({found.nodes[1].host})"]
    assert found.problems[0].reason.startswith("a matrix product takes")
