"""What a launcher reaches, as a :class:`Platform`: its hosts' devices by name, and what a probe measures."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretune.collector.device import NVIDIA_DRIVER
from pretune.collector.evidence import read_json, write_json
from pretune.collector.launchers import launcher_for
from pretune.collector.launchers.ranks import News, RanksLauncher
from pretune.collector.probe.fit import fingerprint_of, misfits, wire_times
from pretune.collector.probe.machine import Machine
from pretune.collector.probe.plan import OPS, QUICK, SCOPES, Plan
from pretune.collector.probe.ranks import FOUND, PLAN
from pretune.datasets.platform import Accelerator, Fingerprint, Link, LinkFit, PeakFlops, Platform
from pretune.datasets.spec import read_yaml
from pretune.errors import InputError

DOUBTFUL = 0.25  # median relative error of a fit
_WHY = {
    True: "the bandwidth is that of the largest messages, most are faster (a shaped link's bucket, caches)",
    False: "most messages took longer than they should; probe again while nothing else runs there",
}


def detect_backend() -> str:
    """``nccl`` where this machine has an NVIDIA GPU that torch can use, else ``gloo``."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not NVIDIA_DRIVER.exists():
        return "gloo"
    import torch

    return "nccl" if torch.cuda.is_available() else "gloo"


def local_devices(backend: str) -> int:
    """Every GPU; on the CPU two ranks, or one where there is one core."""
    if backend == "gloo":
        return min(2, len(os.sched_getaffinity(0)))
    import torch

    return torch.cuda.device_count()


def ranks_launcher(hosts: Path | None, folder: Path) -> RanksLauncher:
    """A launcher of what the file ``hosts`` lists, as a job's ``launcher:`` does; else of all devices here.

    Raises :class:`InputError` naming the file.
    """
    backend = detect_backend()
    settings = read_yaml(hosts) if hosts else {"local": {"devices": local_devices(backend)}}
    where = f"{hosts}: " if hosts else ""
    if not isinstance(settings, dict):
        raise InputError(f"{where}is no mapping; give hosts: [{{address: ..., prefix: [ssh, node1]}}, ...]")
    try:
        launcher = launcher_for(settings, folder, backend)
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    if not isinstance(launcher, RanksLauncher):
        raise InputError(f"{where}launcher: starts no ranks; give local:, hosts:, slurm: or ray:")
    return launcher


@dataclass(frozen=True)
class Probed:
    """A platform as its ranks found it, and the times that this rests on (see ``probe.ranks.run``)."""

    platform: Platform
    measured: dict[str, Any]

    def doubts(self) -> list[str]:
        """What to know before the figures are trusted, a line each."""
        lines = [f"{name}: not measured: {why}" for name, why in self.measured["missing"].items()]
        times = wire_times(self.measured, self.platform.backend)
        for name, fit in self.fits().items():
            if (fit.relative_error or 0.0) > DOUBTFUL:
                faster = np.median(misfits(fit, times[name])) > 0
                lines.append(f"{name}: {fit.relative_error:.0%} off the fit (median): {_WHY[bool(faster)]}")
        return lines

    def fits(self) -> dict[str, LinkFit]:
        """What was fitted, by "scope_op"."""
        names = [f"{scope}_{op}" for scope in SCOPES for op in OPS]
        found = {name: getattr(self.platform.fingerprint, name) for name in names}
        return {name: fit for name, fit in found.items() if fit != LinkFit()}


def detect_platform(launcher: RanksLauncher) -> Platform:
    """The platform that ``launcher`` reaches: its hosts' devices, probed on all its ranks (seconds).

    Raises :class:`LaunchError` when the ranks fail, :class:`InputError` when the hosts differ.
    """
    return probe_platform(launcher, QUICK).platform


def probe_platform(
    launcher: RanksLauncher, plan: Plan, name: str | None = None, news: News = lambda _: None
) -> Probed:
    """The same by any plan, called ``name``; ``news`` hears the ``phase`` that it is at."""
    platform = unprobed(launcher, name)
    folder = launcher.folder / "probe"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "progress.json").unlink(missing_ok=True)  # of an earlier probe
    write_json(folder / PLAN, asdict(plan))
    launcher.run("probe", "pretune.collector.probe", timeout_s=600.0, news=news)
    found = read_json(folder / FOUND)
    machine = alike([Machine(**each) for each in found["machines"]], launcher.reach.backend)
    fingerprint = fingerprint_of(found, launcher.reach.backend)
    accelerator = accelerator_of(machine, fingerprint)
    known = {
        "name": name or _slug(f"{accelerator.name}-{platform.nodes}x{platform.devices_per_node}"),
        "accelerator": accelerator,
        "intra_node": _link(fingerprint.intra_node_point_to_point),
        "inter_node": _link(fingerprint.inter_node_point_to_point),
        "fingerprint": fingerprint,
    }
    return Probed(platform.model_copy(update=known), found)


def unprobed(launcher: RanksLauncher, name: str | None = None) -> Platform:
    """What is known before it is probed; raises :class:`InputError` for a name that will not do."""
    known = {
        "name": name or "unprobed",
        "accelerator": {"name": "unknown"},
        "devices_per_node": launcher.reach.ranks,
        "nodes": launcher.reach.nodes,
        "backend": launcher.reach.backend,
    }
    return Platform.from_mapping(known, "platform")


def _link(fit: LinkFit) -> Link:
    return Link(bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s, latency_s=fit.latency_s)


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
