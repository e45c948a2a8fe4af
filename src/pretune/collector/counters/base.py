"""What a machine can say about itself while a trial is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class Readings:
    """What a provider read between ``start`` and ``stop``; names end in their unit (``cpu_user_s``), and an
    instance of the thing that was read follows a dot (``net_sent_bytes.eth0``)."""

    totals: dict[str, float] = field(default_factory=dict)  # amounts: what was added meanwhile
    means: dict[str, float] = field(default_factory=dict)  # gauges: their mean over that time
    first: dict[str, float] = field(default_factory=dict)  # what was read at ``start`` alone
    last: dict[str, float] = field(default_factory=dict)  # what was read at ``stop`` alone

    def per_step(self, steps: int) -> dict[str, float]:
        """The totals by step, as ``cpu_user_s_per_step``; nothing when no step was made."""
        if not steps:
            return {}
        return {_per_step(name): amount / steps for name, amount in self.totals.items()}

    def by_name(self, steps: int) -> dict[str, float]:
        """Totals, their share of each of ``steps`` optimizer steps, means, and what was read but once."""
        return self.totals | self.per_step(steps) | self.means | self.first | self.last


def joined(spells: Sequence[tuple[float, Readings]]) -> Readings:
    """One reading of several spells, each with its seconds: totals add up, means weigh by the time."""
    totals: dict[str, float] = {}
    weighed: dict[str, tuple[float, float]] = {}
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for seconds, read in spells:
        for name, amount in read.totals.items():
            totals[name] = totals.get(name, 0.0) + amount
        for name, mean in read.means.items():
            amount, time_s = weighed.get(name, (0.0, 0.0))
            weighed[name] = amount + mean * seconds, time_s + seconds
        first, last = read.first | first, last | read.last
    means = {name: amount / time_s for name, (amount, time_s) in weighed.items() if time_s}
    return Readings(totals, means, first, last)


def _per_step(name: str) -> str:
    quantity, dot, instance = name.partition(".")
    return f"{quantity}_per_step{dot}{instance}"


class CounterProvider(ABC):
    """One source of readings. Making one never raises: what the machine lacks is in ``missing``."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        """What cannot be read here (this provider's name, or one reading's) -> the reason."""

    @property
    def intrusive(self) -> bool:
        """Whether reading it changes what is measured; such a trial tells nothing of throughput."""
        return False

    @abstractmethod
    def start(self) -> None:
        """Begin. Cheap: the training waits for it."""

    @abstractmethod
    def stop(self) -> Readings:
        """The readings since ``start``; empty when everything is missing."""


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """By how much each counter grew that was there both times."""
    return {name: after[name] - value for name, value in before.items() if name in after}
