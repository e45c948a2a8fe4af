"""A trial under way, as its launcher sees it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pretune.collector.evidence import read_json


class Running:
    """What runs under ``name``, what it last said of itself, and whether it has been ended."""

    def __init__(self, name: str, folder: Path, warm: bool) -> None:
        self.name, self.folder, self.warm = name, folder, warm
        self.began, self._began_monotonic = time.time(), time.monotonic()
        self.said: dict[str, Any] = {}
        self.heard_s = 0.0  # when it last said something new, by this host's clock
        self.killed_at: float | None = None
        self.killed_because: str | None = None
        self.lost_peer_at: float | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_monotonic

    def overdue(self, timeout_s: float, stall_s: float) -> str | None:
        """Why the trial is to be killed now; None when it may go on."""
        elapsed_s = self.elapsed_s
        said = read_json(self.folder / "progress.json") or {}
        if said != self.said:
            self.said, self.heard_s = said, elapsed_s
        where = f"phase {said.get('phase', 'start')}, window {said.get('windows', 0)}"
        if elapsed_s > timeout_s:
            return f"did not end within its limit of {timeout_s:g} s ({where})"
        quiet = elapsed_s - self.heard_s
        if quiet > stall_s:
            return f"no progress for {quiet:.0f} s ({where})"
        return None
