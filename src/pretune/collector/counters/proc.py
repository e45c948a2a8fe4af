"""What only the kernel's own files and calls say: page faults, and the load around the trial."""

from __future__ import annotations

import os
import resource

from pretune.collector.counters.base import CounterProvider, Readings


class ProcCounters(CounterProvider):
    """Page faults of this process, getrusage(2), and the host's load average at the end."""

    name = "proc"

    def start(self) -> None:
        self._before = resource.getrusage(resource.RUSAGE_SELF)

    def stop(self) -> Readings:
        now = resource.getrusage(resource.RUSAGE_SELF)
        faults = {
            "page_faults_minor": float(now.ru_minflt - self._before.ru_minflt),
            "page_faults_major": float(now.ru_majflt - self._before.ru_majflt),
        }
        return Readings(faults, last={"load_average_1min": os.getloadavg()[0]})
