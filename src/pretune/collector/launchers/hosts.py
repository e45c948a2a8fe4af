"""Trials on a list of hosts, each reached by a command prefix (``ssh host`` and the like), or on this one."""

from __future__ import annotations

from pathlib import Path

from pretune.collector.launchers.agents import Host
from pretune.collector.launchers.base import Reach
from pretune.collector.launchers.ranks import STALL_S, RanksLauncher
from pretune.errors import InputError


class HostsLauncher(RanksLauncher):
    """Runs one trial at a time over all ``hosts``; ``folder`` is seen by all of them."""

    def __init__(
        self,
        hosts: list[Host],
        folder: str | Path,
        *,
        backend: str = "gloo",
        warm: bool = False,
        stall_s: float = STALL_S,
    ) -> None:
        if len({host.ranks for host in hosts}) != 1:
            counts = ", ".join(f"{host.address}: {host.ranks}" for host in hosts)
            raise InputError(f"hosts: every host needs the same number of ranks, got {counts}")
        if len(hosts) > 1 and any("address" not in host.model_fields_set for host in hosts):
            raise InputError("hosts: several hosts need an address each, at which the others reach them")
        self.hosts = hosts
        reach = Reach(
            nodes=len(hosts),
            ranks=hosts[0].ranks,
            backend=backend,
            interfaces=tuple(host.interface for host in hosts),
            here=not any(host.prefix for host in hosts),
        )
        super().__init__(reach, folder, warm=warm, stall_s=stall_s)

    def _hosts(self) -> list[Host]:
        return self.hosts


class LocalLauncher(HostsLauncher):
    """Trials on this machine: ``devices`` ranks over loopback or the GPUs' own links."""

    def __init__(
        self,
        devices: int,
        folder: str | Path,
        *,
        backend: str = "gloo",
        warm: bool = False,
        stall_s: float = STALL_S,
    ) -> None:
        hosts = [Host(ranks=devices, interface="lo" if backend == "gloo" else None)]
        super().__init__(hosts, folder, backend=backend, warm=warm, stall_s=stall_s)
