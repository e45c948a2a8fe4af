"""Energy of the processor's packages and memory, as the kernel's powercap framework counts it (RAPL)."""

from __future__ import annotations

from pathlib import Path

from pretune.collector.counters.base import CounterProvider, Readings

ZONES = Path("/sys/class/powercap")
MICRO = 1e-6


class PowercapCounters(CounterProvider):
    """``cpu_energy_j.ZONE`` of each zone of the host, which all of its processes share.

    A counter starts again at 0 beyond its range, within minutes to hours: one turn is made good.
    """

    name = "powercap"

    def __init__(self, zones: Path = ZONES) -> None:
        super().__init__()
        self._zones = {self._named(path): path for path in sorted(zones.glob("*:*")) if path.is_dir()}
        if not self._zones:
            self.missing[self.name] = "the kernel exposes no power zones (no RAPL in /sys/class/powercap)"

    def _named(self, path: Path) -> str:
        """``package-0``, ``dram.intel-rapl:0:2``: names of subzones repeat between packages."""
        name = _text(path / "name") or path.name
        return name if path.name.count(":") == 1 else f"{name}.{path.name}"

    def start(self) -> None:
        self._before = self._absolute()

    def stop(self) -> Readings:
        after, totals = self._absolute(), {}
        for zone, before in self._before.items():
            if zone in after:
                turn = float(_text(self._zones[zone] / "max_energy_range_uj") or 0)
                used = after[zone] - before
                totals[f"cpu_energy_j.{zone}"] = (used if used >= 0 else used + turn) * MICRO
        return Readings(totals)

    def _absolute(self) -> dict[str, float]:
        found = {}
        for zone, path in self._zones.items():
            try:
                found[zone] = float((path / "energy_uj").read_text())
            except (OSError, ValueError) as error:  # readable by root only since CVE-2020-8694
                self.missing[f"powercap.{zone}"] = f"cannot be read: {error}"
        return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
