"""What only the kernel's own files say: page faults, and the load around the trial."""

from __future__ import annotations

import os
from pathlib import Path

from pretune.collector.counters.base import CounterProvider, Readings, grown


class ProcCounters(CounterProvider):
    """Page faults of process ``pid``, or of this one (proc_pid_stat(5)), and the host's load average at the
    end."""

    name = "proc"

    def __init__(self, pid: int | None = None) -> None:
        super().__init__()
        self._stat = Path(f"/proc/{pid or 'self'}/stat")

    def start(self) -> None:
        self._before = self._faults()

    def stop(self) -> Readings:
        return Readings(grown(self._before, self._faults()), last={"load_average_1min": os.getloadavg()[0]})

    def _faults(self) -> dict[str, float]:
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()  # a name may hold spaces
        except OSError:  # it has ended; or there is no /proc
            return {}
        return {"page_faults_minor": float(fields[7]), "page_faults_major": float(fields[9])}
