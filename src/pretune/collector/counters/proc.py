"""What only the kernel's own files and calls say: page faults, and the load around the trial."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from pretune.collector.counters.base import CounterProvider

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_CORE_EVENTS = Path("/sys/bus/event_source/devices")


class ProcCounters(CounterProvider):
    """Page faults of this process, getrusage(2), and the host's load average at the end."""

    name = "proc"

    def __init__(self) -> None:
        super().__init__()
        self.missing.update(_missing_hardware_events())

    def start(self) -> None:
        self._before = resource.getrusage(resource.RUSAGE_SELF)

    def stop(self) -> dict[str, float]:
        now = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "page_faults_minor": float(now.ru_minflt - self._before.ru_minflt),
            "page_faults_major": float(now.ru_majflt - self._before.ru_majflt),
            "load_average_1min": os.getloadavg()[0],
        }


def _missing_hardware_events() -> dict[str, str]:
    """pretune reads no hardware events; say whether this machine would have had them."""
    if not _PARANOID.exists():
        return {"perf": "the kernel has no perf events"}
    if not any((_CORE_EVENTS / name).exists() for name in ("cpu", "cpu_core", "armv8_pmuv3_0")):
        return {"perf": "the machine exposes no hardware performance counters (no core PMU in /sys)"}
    return {"perf": "not collected: hardware events need a perf provider"}
