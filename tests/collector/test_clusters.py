"""Real clusters on one machine: two network namespaces with a slow link, and ranks whose memory is capped."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pretune.collector.detect import detect_platform
from pretune.collector.evidence import read_json
from pretune.collector.launchers.agents import Host
from pretune.collector.launchers.hosts import HostsLauncher
from pretune.collector.probe.fit import wire_bytes
from pretune.collector.probe.plan import OPS
from pretune.datasets import Accelerator, Knobs, Measure, ModelSpec, Platform, Status, TrialSpec, Workload
from pretune.datasets.frameworks import framework

CLUSTER = Path(__file__).parents[2] / "benchmarks" / "clusters" / "cluster.py"
MODEL = ModelSpec(name="m", layers=2, hidden_size=256, heads=4, vocabulary=1024, max_positions=128)
WORKLOAD = Workload(model=MODEL, sequence_length=64, global_batch_tokens=256, precision="fp32")
HOSTS = [
    Host(address=f"10.77.0.{n}", interface=f"veth-{ns}", prefix=("ip", "netns", "exec", f"pretune-{ns}"))
    for n, ns in ((1, "a"), (2, "b"))
]
CAPPED = Host(interface="lo", ranks=2, rank_cgroups=("/sys/fs/cgroup/memory/pretune-{local_rank}",))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("tc") or not Path("/sys/fs/cgroup/memory").exists(),
        reason="needs root, iproute2 and control groups of version 1",
    ),
]


@pytest.fixture
def cluster():
    def up(*arguments):
        subprocess.run([sys.executable, CLUSTER, "up", *arguments], check=True)

    yield up
    subprocess.run([sys.executable, CLUSTER, "down"], check=True)


def run(launcher, devices_per_node, nodes, trial_id="t", **knobs):
    platform = Platform(
        name="p",
        accelerator=Accelerator(name="cpu"),
        devices_per_node=devices_per_node,
        nodes=nodes,
        backend="gloo",
    )
    resolved = framework("deepspeed").resolve(WORKLOAD, platform, Knobs(**knobs))
    measure = Measure(max_warmup_windows=2, min_windows=4, max_windows=4)
    spec = TrialSpec(trial_id=trial_id, workload=WORKLOAD, platform=platform, knobs=resolved, measure=measure)
    handle = launcher.submit(spec)
    while (trial := launcher.poll(handle)) is None:
        time.sleep(0.05)
    return trial


def expected_bytes(trial):
    """What the link carries in one step between two ranks: each sends what the ring says."""
    collectives = framework("deepspeed").collectives(WORKLOAD, trial.platform, trial.knobs)
    share = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "reduce": 0.5, "broadcast": 0.5}
    return sum(share[c.op] * c.bytes for c in collectives)


def test_the_link_carries_what_the_framework_declares(cluster, tmp_path):
    cluster("200mbit")
    with HostsLauncher(HOSTS, tmp_path, warm=True) as launcher:
        trials = {
            stage: run(launcher, 1, 2, f"z{stage}", micro_batch=2, zero_stage=stage) for stage in (0, 1)
        }
    for trial in trials.values():
        assert trial.status is Status.OK, trial.cause
        counters = trial.counters
        sent = (counters["link_sent_end_bytes"] - counters["link_sent_start_bytes"]) / len(
            trial.window_times_s
        )
        assert sent == pytest.approx(expected_bytes(trial), rel=0.1)
    assert trials[1].step_time_s > 1.2 * trials[0].step_time_s  # three volumes against two


@pytest.mark.parametrize(
    ("rate", "bytes_per_s"),
    [
        pytest.param("1gbit", 125e6, marks=pytest.mark.long),
        ("200mbit", 25e6),
        pytest.param("50mbit", 6.25e6, marks=pytest.mark.long),
    ],
)
def test_a_probe_finds_the_rate_of_the_link(cluster, tmp_path, rate, bytes_per_s):
    cluster(rate)
    with HostsLauncher(HOSTS, tmp_path, warm=True) as launcher:
        found = detect_platform(launcher)
    assert found.inter_node.bandwidth_bytes_per_s == pytest.approx(bytes_per_s, rel=0.1)
    assert found.fingerprint.allreduce_busbw_bytes_per_s == pytest.approx(bytes_per_s, rel=0.1)
    assert found.intra_node.bandwidth_bytes_per_s is None  # one device a node


@pytest.mark.long
def test_a_device_s_link_between_nodes_is_its_share_of_what_its_node_s_devices_share(cluster, tmp_path):
    cluster("200mbit")
    hosts = [host.model_copy(update={"ranks": 2}) for host in HOSTS]
    with HostsLauncher(hosts, tmp_path, warm=True) as launcher:
        found = detect_platform(launcher)
    fits = found.fingerprint
    assert found.inter_node.bandwidth_bytes_per_s == pytest.approx(12.5e6, rel=0.15)
    assert 0.85 * 12.5e6 < fits.inter_node_all_reduce.bandwidth_bytes_per_s < 0.85 * 25e6
    assert fits.allreduce_busbw_bytes_per_s == pytest.approx(25e6, rel=0.15)  # one ring crosses once
    assert found.intra_node.bandwidth_bytes_per_s > 50e6


@pytest.mark.long
def test_gloo_puts_on_the_wire_what_the_probe_counts(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    cluster("1gbit")
    with HostsLauncher(HOSTS, tmp_path, warm=True) as launcher:
        sent = read_json(launcher.run("wire", "programs.wire_bytes") / "sent.json")
    assert set(sent) == set(OPS)
    for op, share in sent.items():
        assert share == pytest.approx(wire_bytes(op, "gloo", 2, 1), rel=0.05), op


def test_the_kernel_kills_what_does_not_fit_and_the_record_says_so(cluster, tmp_path):
    cluster("memory", "--limit-mib", "40")
    with HostsLauncher([CAPPED], tmp_path, warm=True) as launcher:
        trial = run(launcher, 2, 1, micro_batch=2, zero_stage=1)
    assert trial.status is Status.OOM, trial.cause
    assert "the kernel killed rank" in trial.cause
    assert trial.tokens_per_s is None
