"""Linux perf events of one process, perf_event_open(2): cycles, instructions, cache and branch misses."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

from pretune.collector.counters.base import CounterProvider, Readings

SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319}
HARDWARE, SOFTWARE = 0, 1
# name -> (type, config) of linux/perf_event.h
EVENTS = {
    "cycles_user": (HARDWARE, 0),
    "instructions_user": (HARDWARE, 1),
    "cache_references_user": (HARDWARE, 2),
    "cache_misses_user": (HARDWARE, 3),
    "branch_misses_user": (HARDWARE, 5),
    "cpu_clock_s": (SOFTWARE, 1),  # of task-clock, which counts nanoseconds
    "cpu_migrations": (SOFTWARE, 4),
}
UNITS = {"cpu_clock_s": 1e-9}
INHERIT, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
READ_TIMES = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING
_ATTRIBUTE = struct.Struct("=IIQQQQQIIQ")  # PERF_ATTR_SIZE_VER0, 64 bytes
_READING = struct.Struct("=QQQ")


class PerfCounters(CounterProvider):
    """User-mode events of every thread of process ``pid``, or of this one, that is there at ``start``, and of
    those that it makes later.

    Where there are more events than the processor has counters, the kernel takes turns; values are then
    scaled by the share of time in which each was counted.
    """

    name = "perf"

    def __init__(self, pid: int | None = None) -> None:
        super().__init__()
        self._pid = pid or os.getpid()
        self._open_files: list[tuple[str, int]] = []
        number = SYSCALL.get(platform.machine())
        if platform.system() != "Linux" or number is None:
            self.missing[self.name] = f"no perf events on {platform.system()} {platform.machine()}"
        self._number, self._libc = number, ctypes.CDLL(None, use_errno=True)
        for event in EVENTS if self.name not in self.missing else ():
            self._close([(event, file)] if (file := self._open(event, 0)) is not None else [])

    def start(self) -> None:
        self._close(self._open_files)
        self._open_files = [
            (event, file)
            for event in EVENTS
            if not {self.name, f"perf.{event}"} & self.missing.keys()
            for thread in _threads(self._pid)
            if (file := self._open(event, thread)) is not None
        ]
        self._before = self._values()

    def stop(self) -> Readings:
        totals: dict[str, float] = {}
        before, after = self._before, self._values()
        for (event, file), value in after.items():
            grown = value - before[event, file]
            totals[event] = totals.get(event, 0.0) + grown * UNITS.get(event, 1.0)
        self._close(self._open_files)
        self._open_files = []
        return Readings(totals)

    def _open(self, event: str, thread: int) -> int | None:
        """The event's file for one thread (0: this one); None, with the reason in ``missing``, if refused."""
        kind, config = EVENTS[event]
        flags = INHERIT | EXCLUDE_HYPERVISOR | (EXCLUDE_KERNEL if kind == HARDWARE else 0)
        attribute = _ATTRIBUTE.pack(kind, _ATTRIBUTE.size, config, 0, 0, READ_TIMES, flags, 0, 0, 0)
        file = self._libc.syscall(self._number, attribute, thread, -1, -1, 0)
        if file >= 0:
            return int(file)
        code = ctypes.get_errno()
        if thread in (0, self._pid) and code != errno.ESRCH:  # another thread may just have ended
            self.missing[f"perf.{event}"] = f"the kernel refuses the event: {os.strerror(code)}"
        return None

    def _values(self) -> dict[tuple[str, int], float]:
        values = {}
        for event, file in self._open_files:
            count, enabled, running = _READING.unpack(os.read(file, _READING.size))
            values[event, file] = count * (enabled / running) if running else 0.0
        return values

    def _close(self, files: list[tuple[str, int]]) -> None:
        for _, file in files:
            os.close(file)


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return []
