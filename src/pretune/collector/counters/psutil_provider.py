"""Processor time, switches and faults of one process; bytes of the host's network interfaces."""

from __future__ import annotations

import os

import psutil

from pretune.collector.counters.base import CounterProvider, Readings, grown


class PsutilCounters(CounterProvider):
    """Of process ``pid``, which may end meanwhile, or of this one.

    Network bytes are those of every interface that is up in this process's network namespace. For the one
    that ``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME`` names, the kernel's own counters before and after
    are kept as well (``link_…_start_bytes``, ``…_end_bytes``), but not of another process's.
    """

    name = "psutil"

    def __init__(self, pid: int | None = None) -> None:
        super().__init__()
        self._process = psutil.Process() if pid is None else _process(pid)
        link = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME")
        self._link = link if pid is None else None
        if self._link and self._link not in psutil.net_io_counters(pernic=True):
            self.missing["psutil.link"] = f"there is no network interface {self._link} on this host"

    def start(self) -> None:
        self._before = self._absolute()

    def stop(self) -> Readings:
        after, first, last = self._absolute(), {}, {}
        for way in ("sent", "received"):
            counter = f"net_{way}_bytes.{self._link}"
            if counter in after and counter in self._before:
                first[f"link_{way}_start_bytes"] = self._before[counter]
                last[f"link_{way}_end_bytes"] = after[counter]
        return Readings(grown(self._before, after), first=first, last=last)

    def _absolute(self) -> dict[str, float]:
        return {**self._of_process(), **_of_network()}

    def _of_process(self) -> dict[str, float]:
        if self._process is None:
            return {}
        try:
            with self._process.oneshot():
                times, switches = self._process.cpu_times(), self._process.num_ctx_switches()
        except psutil.NoSuchProcess:
            return {}
        except psutil.AccessDenied as error:
            self.missing[self.name] = f"the process of another user: {error}"
            return {}
        return {
            "cpu_user_s": times.user,
            "cpu_system_s": times.system,
            "context_switches_voluntary": float(switches.voluntary),
            "context_switches_involuntary": float(switches.involuntary),
            **self._disk(self._process),
        }

    def _disk(self, process: psutil.Process) -> dict[str, float]:
        try:
            disk = process.io_counters()
        except (AttributeError, psutil.Error) as error:  # not on macOS; refused in some containers
            self.missing["psutil.disk"] = f"no I/O counters of the process: {error}"
            return {}
        return {"disk_read_bytes": float(disk.read_bytes), "disk_written_bytes": float(disk.write_bytes)}


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _of_network() -> dict[str, float]:
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    readings: dict[str, float] = {}
    for name, counters in psutil.net_io_counters(pernic=True).items():
        if name in up:
            readings[f"net_sent_bytes.{name}"] = float(counters.bytes_sent)
            readings[f"net_received_bytes.{name}"] = float(counters.bytes_recv)
    return readings
