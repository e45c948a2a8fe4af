"""What a launcher reaches, as a :class:`Platform`: its hosts' devices by name, and what a probe measures."""

from __future__ import annotations

import os
import re

from pretune.collector.device import NVIDIA_DRIVER
from pretune.collector.evidence import read_json
from pretune.collector.launchers.hosts import HostsLauncher
from pretune.collector.probe import Machine
from pretune.datasets.platform import Accelerator, Fingerprint, Link, PeakFlops, Platform
from pretune.errors import InputError


def detect_backend() -> str:
    """``nccl`` where this machine has an NVIDIA GPU that torch can use, else ``gloo``."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not NVIDIA_DRIVER.exists():
        return "gloo"
    import torch

    return "nccl" if torch.cuda.is_available() else "gloo"


def detect_platform(launcher: HostsLauncher) -> Platform:
    """The platform that ``launcher`` reaches: its hosts' devices, probed on all its ranks (seconds).

    Raises :class:`LaunchError` when the ranks fail, :class:`InputError` when the hosts differ.
    """
    folder = launcher.run("probe", "pretune.collector.probe", timeout_s=180.0)
    found = read_json(folder / "probe.json")
    fingerprint = Fingerprint.from_mapping(found["fingerprint"], str(folder))
    machine = alike([Machine(**each) for each in found["machines"]], launcher.backend)
    accelerator = accelerator_of(machine, fingerprint)
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


def accelerator_of(machine: Machine, fingerprint: Fingerprint) -> Accelerator:
    """The device of one rank, by the vendor's figures where there is a preset, else by what was measured."""
    return _gpu(machine) if machine.backend == "nccl" else _cpu(machine, fingerprint)


def alike(machines: list[Machine], backend: str) -> Machine:
    """The machine that every rank runs on, with the least memory of them.

    Raises :class:`InputError` when they differ, or are not what this machine's ``backend`` stands for.
    """
    first = machines[0]
    for each in machines:
        if each.backend != backend:
            raise InputError(
                f"platform: auto: this machine has a GPU, but {each.host} has none that torch can use; "
                "name a platform file, or run pretune on one of the hosts"
            )
        chosen = backend == "nccl" or NVIDIA_DRIVER.exists() or os.environ.get("DS_ACCELERATOR") == "cpu"
        if each.nvidia_driver and not chosen:
            raise InputError(
                f"platform: auto: {each.host} has an NVIDIA GPU, but this machine has none: trials would "
                "run on CPUs; name a platform file, or run pretune on one of the hosts"
            )
        if (each.device, each.cores) != (first.device, first.cores):
            raise InputError(
                f"platform: auto: {first.host} has {_said(first)}, {each.host} has {_said(each)}; "
                "use hosts that are alike, or name a platform file"
            )
    return min(machines, key=lambda each: each.memory_bytes)


def _said(machine: Machine) -> str:
    return machine.device if machine.cores is None else f"{machine.device} with {machine.cores} cores a rank"


def _cpu(machine: Machine, fingerprint: Fingerprint) -> Accelerator:
    """A CPU's share for one rank. Its peak is what a matmul was measured to reach: vendors give none."""
    return Accelerator(
        name=_slug(f"{machine.device}-{machine.cores}core"),
        peak_flops_per_s=PeakFlops(
            fp32=fingerprint.matmul_fp32_flops_per_s, bf16=fingerprint.matmul_bf16_flops_per_s
        ),
        memory_bytes=machine.memory_bytes,
        memory_bandwidth_bytes_per_s=fingerprint.copy_bytes_per_s,
    )


def _gpu(machine: Machine) -> Accelerator:
    from pretune.datasets.presets import accelerator

    try:
        known = accelerator(machine.device).accelerator
    except InputError:  # no preset: the probe's figures stand in
        return Accelerator(name=_slug(machine.device), memory_bytes=machine.memory_bytes)
    return known.model_copy(update={"memory_bytes": machine.memory_bytes})


def _slug(text: str) -> str:
    words = re.sub(r"\((R|TM)\)|CPU|Processor", " ", text, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")
