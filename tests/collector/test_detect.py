"""What a platform is found to be: what its hosts say, not what the machine that asks is."""

from dataclasses import replace

import psutil
import pytest

from pretune.collector import detect
from pretune.collector.launchers.agents import Host
from pretune.collector.launchers.hosts import HostsLauncher
from pretune.collector.probe import Machine
from pretune.errors import InputError

CPU = Machine("node1", "gloo", "A CPU", 4, 2**34, nvidia_driver=False)
GPU = Machine("node1", "nccl", "NVIDIA H100 80GB HBM3", None, 80 * 2**30, nvidia_driver=True)


@pytest.fixture(autouse=True)
def login_node(tmp_path, monkeypatch):
    """The machine that pretune runs on has no GPU."""
    monkeypatch.setattr(detect, "NVIDIA_DRIVER", tmp_path / "nvidiactl")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)


def test_hosts_that_are_alike_are_one_kind_of_device_with_the_least_memory():
    assert detect.alike([CPU, replace(CPU, host="node2", memory_bytes=2**33)], "gloo").memory_bytes == 2**33
    assert detect.alike([GPU, GPU], "nccl") == GPU


@pytest.mark.parametrize(
    ("machines", "backend", "message"),
    [
        (
            [CPU, replace(CPU, host="b", cores=2)],
            "gloo",
            "node1 has A CPU with 4 cores a rank, b has A CPU with",
        ),
        (
            [GPU, replace(GPU, host="b", device="NVIDIA L4")],
            "nccl",
            "b has NVIDIA L4; use hosts that are alike",
        ),
        ([replace(CPU, nvidia_driver=True)], "gloo", "node1 has an NVIDIA GPU, but this machine has none"),
        ([CPU], "nccl", "this machine has a GPU, but node1 has none"),
    ],
)
def test_what_auto_would_get_wrong_is_refused_with_the_remedy(machines, backend, message):
    with pytest.raises(InputError, match=f"platform: auto: .*{message}.*name a platform file"):
        detect.alike(machines, backend)


def test_cpus_of_gpu_hosts_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert detect.alike([replace(CPU, nvidia_driver=True)], "gloo").device == "A CPU"


@pytest.mark.slow
def test_a_host_is_probed_by_its_own_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with HostsLauncher([Host(interface="lo", ranks=2, prefix=("env",))], tmp_path) as launcher:
        found = detect.detect_platform(launcher)
    assert (found.devices, found.backend) == (2, "gloo")
    assert found.accelerator.memory_bytes == psutil.virtual_memory().total // 2
    assert "core" in found.name
    assert found.fingerprint.matmul_fp32_flops_per_s > 1e8
    assert 0 < found.fingerprint.allreduce_latency_s < 1
