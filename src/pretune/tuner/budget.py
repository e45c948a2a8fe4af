"""What a session may spend, and what it has spent: counted across kills, whatever the moment."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pretune.collector.evidence import read_json, write_json
from pretune.datasets.spec import Spec
from pretune.datasets.trial import Trial

Phase = Literal["search", "compare"]
FILE = "spent.json"
TICK_S = 5.0  # what a kill -9 may leave uncounted
BOUNDS = ("trials", "minutes", "device_hours", "cost")


class Budget(Spec):
    """When a session ends: at the first of the bounds that are given.

    ``trials`` and ``minutes`` bound the search alone; failed trials count. ``device_hours``, and ``cost`` at
    ``price_per_device_hour`` in any currency, bound all that devices are held for while the session runs:
    fits and start-ups too, and the comparison of the winner with the defaults, for which the search
    leaves what trials have taken so far.

    ``stop_below`` ends the search earlier: where another trial is expected to bring less than this share of
    the best throughput. Off unless given. It needs a strategy that predicts, and never acts before
    ``least_trials`` have ended.
    """

    trials: PositiveInt | None = None
    minutes: PositiveFloat | None = None
    device_hours: PositiveFloat | None = None
    cost: PositiveFloat | None = None
    price_per_device_hour: PositiveFloat | None = None
    stop_below: float | None = Field(default=None, gt=0, lt=1)
    least_trials: PositiveInt = 8

    @model_validator(mode="after")
    def _some(self) -> Self:
        if all(getattr(self, name) is None for name in BOUNDS):
            raise ValueError(f"give one of {', '.join(BOUNDS)}, or several")
        if self.cost is not None and self.price_per_device_hour is None:
            raise ValueError("cost needs price_per_device_hour; give it")
        return self

    @property
    def device_seconds(self) -> float:
        """That all may hold together; infinite where nothing bounds them."""
        hours = [self.device_hours] if self.device_hours else []
        if self.cost and self.price_per_device_hour:
            hours.append(self.cost / self.price_per_device_hour)
        return min(hours, default=math.inf) * 3600


class Spending:
    """The seconds of each phase that ``devices`` were held for, kept in ``folder/spent.json``.

    Time counts while :meth:`during` a phase; :meth:`tick` keeps it, so that a kill -9 leaves at most
    :data:`TICK_S` uncounted. Where the file is lost, the trials that ended are the least that was spent.
    """

    def __init__(self, folder: Path, budget: Budget, devices: int, stored: Iterable[Trial] = ()) -> None:
        self.budget, self.devices = budget, devices
        self._path = folder / FILE
        self._kept: dict[str, float] = read_json(self._path) or _least(stored)
        self._now: tuple[Phase, float] | None = None
        self._saved = -math.inf

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """What happens inside is of that phase."""
        self._now = (phase, time.monotonic())
        try:
            yield
        finally:
            self._kept[phase], self._now = self.seconds(phase), None
            self._save(durable=True)

    def tick(self) -> None:
        """To be called now and then while something runs."""
        if time.monotonic() - self._saved >= TICK_S:
            self._save()

    def _save(self, durable: bool = False) -> None:
        self._saved = time.monotonic()
        write_json(self._path, {phase: self.seconds(phase) for phase in self._kept}, durable)

    def seconds(self, phase: str) -> float:
        """Of that phase, in all runs of the session so far."""
        running = self._now is not None and self._now[0] == phase
        return self._kept[phase] + (time.monotonic() - self._now[1] if self._now and running else 0.0)

    def left_s(self, reserve_s: float = 0.0) -> float:
        """Until the search must end, ``reserve_s`` kept for the comparison; infinite without such a bound."""
        minutes = math.inf if self.budget.minutes is None else self.budget.minutes * 60
        return min(minutes - self.seconds("search"), self.held_left_s() - reserve_s)

    def held_left_s(self) -> float:
        """Until no device may be held any longer."""
        return self.budget.device_seconds / self.devices - sum(map(self.seconds, self._kept))

    def asdict(self, trials: int) -> dict[str, Any]:
        """Spent and allowed, by bound; ``trials`` of the search. ``cost`` where there is a price."""
        hours = self.devices * sum(map(self.seconds, self._kept)) / 3600
        price = self.budget.price_per_device_hour
        spent = {
            "trials": trials,
            "minutes": self.seconds("search") / 60,
            "device_hours": hours,
            "cost": None if price is None else hours * price,
        }
        return {name: {"spent": spent[name], "of": getattr(self.budget, name)} for name in BOUNDS}


def _least(stored: Iterable[Trial]) -> dict[str, float]:
    spent = {"search": 0.0, "compare": 0.0}
    for trial in stored:
        spent["search" if trial.purpose == "search" else "compare"] += trial.wall_s or 0.0
    return spent


def in_words(spent: Mapping[str, Any]) -> str:
    """``3 of 20 trials, 0.21 of 5 device-hours``: what is bounded, and what devices it held in any case."""
    parts = []
    for name, each in spent.items():
        if each["of"] is not None or (each["spent"] is not None and name != "minutes"):
            of = "" if each["of"] is None else f" of {each['of']:,.4g}"
            parts.append(f"{each['spent']:,.3g}{of} {name.replace('device_hours', 'device-hours')}")
    return ", ".join(parts)
