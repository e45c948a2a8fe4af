"""Launchers: where trials run. ``launcher_for`` builds one from a job's ``launcher:`` mapping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt

from pretune.collector.launchers.agents import Host
from pretune.collector.launchers.base import Handle, Launcher
from pretune.collector.launchers.hosts import HostsLauncher, LocalLauncher
from pretune.collector.launchers.ranks import STALL_S
from pretune.collector.launchers.ray import RayLauncher, RaySettings
from pretune.collector.launchers.slurm import SlurmLauncher, SlurmSettings
from pretune.datasets.spec import Spec
from pretune.errors import InputError

__all__ = ["Handle", "Launcher", "launcher_for"]


class _Settings(Spec, ABC):
    """The ``launcher:`` of a job, of one kind."""

    @abstractmethod
    def open(self, folder: Path, backend: str) -> Launcher: ...


class _OfRanks(_Settings):
    """``warm``: fork the ranks (default: on the CPU). ``stall_s``: end a trial without news for so long."""

    warm: bool | None = None
    stall_s: PositiveFloat = STALL_S

    def options(self, backend: str) -> dict[str, Any]:
        warm = backend == "gloo" if self.warm is None else self.warm
        return {"backend": backend, "warm": warm, "stall_s": self.stall_s}


class _Devices(Spec):
    devices: PositiveInt


class _Local(_OfRanks):
    local: _Devices

    def open(self, folder: Path, backend: str) -> Launcher:
        return LocalLauncher(self.local.devices, folder, **self.options(backend))


class _Hosts(_OfRanks):
    hosts: list[Host] = Field(min_length=1)

    def open(self, folder: Path, backend: str) -> Launcher:
        return HostsLauncher(self.hosts, folder, **self.options(backend))


class _Slurm(_OfRanks):
    slurm: SlurmSettings

    def open(self, folder: Path, backend: str) -> Launcher:
        return SlurmLauncher(self.slurm, folder, **self.options(backend))


class _Ray(_OfRanks):
    ray: RaySettings

    def open(self, folder: Path, backend: str) -> Launcher:
        return RayLauncher(self.ray, folder, **self.options(backend))


class _Replay(_Settings):
    replay: str

    def open(self, folder: Path, backend: str) -> Launcher:
        from pretune.collector.launchers.replay import ReplayLauncher
        from pretune.datasets.store import TrialStore

        return ReplayLauncher(TrialStore(self.replay), folder)


_KINDS: dict[str, type[_Settings]] = {
    "local": _Local,
    "hosts": _Hosts,
    "slurm": _Slurm,
    "ray": _Ray,
    "replay": _Replay,
}


def launcher_for(settings: dict[str, Any], folder: str | Path, backend: str = "gloo") -> Launcher:
    """The launcher that ``settings`` asks for, keeping each trial's files under ``folder``.

    ``{local: {devices: 2}}``, ``{hosts: [{address: ..., prefix: [...]}, ...]}``,
    ``{slurm: {nodes: 2, ranks: 8}}``, ``{ray: {nodes: 2, ranks: 8}}`` or ``{replay: STORE}``; ``warm``
    and ``stall_s`` (seconds) beside all but the last.
    Raises :class:`InputError` naming the field.
    """
    kinds = [kind for kind in _KINDS if kind in settings]
    if len(kinds) != 1:
        raise InputError(
            f"launcher: give exactly one of {', '.join(_KINDS)}, got {sorted(settings) or 'none'}"
        )
    return _KINDS[kinds[0]].from_mapping(settings, "launcher").open(Path(folder), backend)
