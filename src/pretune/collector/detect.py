"""What this machine is, as a :class:`Platform`: its devices by name, and what a probe measures."""

from __future__ import annotations

import os
import platform as host
import re
from pathlib import Path

from pretune.collector.evidence import read_json
from pretune.collector.launchers.hosts import HostsLauncher
from pretune.datasets.platform import Accelerator, Fingerprint, Link, PeakFlops, Platform
from pretune.errors import InputError


def detect_backend() -> str:
    """``nccl`` where there is an NVIDIA GPU that torch can use, else ``gloo``."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not Path("/dev/nvidiactl").exists():
        return "gloo"
    import torch

    return "nccl" if torch.cuda.is_available() else "gloo"


def detect_platform(launcher: HostsLauncher) -> Platform:
    """The platform that ``launcher`` reaches: this machine's devices, probed on all its ranks (seconds)."""
    fingerprint = probe(launcher)
    accelerator = _gpu() if launcher.backend == "nccl" else _cpu(launcher.hosts[0].ranks, fingerprint)
    link = Link(
        bandwidth_bytes_per_s=fingerprint.allreduce_busbw_bytes_per_s,
        latency_s=fingerprint.allreduce_latency_s,
    )
    ranks, nodes = launcher.hosts[0].ranks, len(launcher.hosts)
    within = ranks > 1
    return Platform(
        name=_slug(f"{accelerator.name}-{nodes}x{ranks}"),
        accelerator=accelerator,
        devices_per_node=ranks,
        nodes=nodes,
        intra_node=link if within and nodes == 1 else Link(),
        inter_node=link if nodes > 1 else Link(),
        backend=launcher.backend,
        fingerprint=fingerprint,
    )


def probe(launcher: HostsLauncher) -> Fingerprint:
    """Measure the ranks that ``launcher`` reaches. Raises :class:`LaunchError` when they fail."""
    folder = launcher.run("probe", "pretune.collector.probe", timeout_s=180.0)
    return Fingerprint.from_mapping(read_json(folder / "fingerprint.json"), str(folder))


def _cpu(ranks: int, fingerprint: Fingerprint) -> Accelerator:
    """A CPU's share for one rank. Its peak is what a matmul was measured to reach: vendors give none."""
    import psutil

    name = _cpu_name()
    cores = max(len(os.sched_getaffinity(0)) // ranks, 1)
    return Accelerator(
        name=_slug(f"{name}-{cores}core"),
        peak_flops_per_s=PeakFlops(
            fp32=fingerprint.matmul_fp32_flops_per_s, bf16=fingerprint.matmul_bf16_flops_per_s
        ),
        memory_bytes=psutil.virtual_memory().total // ranks,
        memory_bandwidth_bytes_per_s=fingerprint.copy_bytes_per_s,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, host.machine())


def _gpu() -> Accelerator:
    import torch

    from pretune.datasets.presets import accelerator

    name = torch.cuda.get_device_name(0)
    memory = torch.cuda.get_device_properties(0).total_memory
    try:
        known = accelerator(name).accelerator
    except InputError:  # no preset: the probe's figures stand in
        return Accelerator(name=_slug(name), memory_bytes=memory)
    return known.model_copy(update={"memory_bytes": memory})


def _slug(text: str) -> str:
    words = re.sub(r"\((R|TM)\)|CPU|Processor", " ", text, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")
