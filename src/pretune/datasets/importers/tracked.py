"""What a tracker keeps of a run (settings, metrics, how it ended) as columns of the store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pretune.datasets.importers.aliases import Alias, is_unitless, lookup
from pretune.datasets.importers.complete import MEASURED
from pretune.datasets.importers.mapping import EMPTY, UNITS, typed
from pretune.datasets.importers.mapping import Mapping as UserMap
from pretune.datasets.trial import Status

WARMUP = 2  # readings at the beginning that are not of the steady state, as in Measure


@dataclass
class Stated:
    """Columns that names gave; ``odd``: what was left out, and why; ``unread``: measures without a unit."""

    values: dict[str, Any] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    diverged: bool = False

    @property
    def measured(self) -> bool:
        return any(name in self.values for name in MEASURED)


def stated(told: Mapping[str, Any], names: UserMap | None = None) -> Stated:
    """The columns that ``told`` (name -> value) states; what the user's map names goes before the aliases.

    A column that two names give differently is left out, and noted.
    """
    found, torn = Stated(), set()
    for name, value in told.items():
        if value is None or str(value).strip().lower() in EMPTY - {"nan"} | {"auto"}:
            continue
        meant = list(_meant(name, names))
        if not meant and is_unitless(name):
            found.unread.append(name)
        for alias in meant:
            try:
                read = _read(alias, value)
            except (ValueError, OverflowError):
                found.diverged |= alias.column == "loss_last" and _lost(value)
                found.odd.append(f"{name}: {str(value)[:40]!r} is not what {alias.column} is; left out")
                continue
            if read is not None and not _same(found.values.setdefault(alias.column, read), read):
                torn.add(alias.column)
    for column in sorted(torn):
        found.odd.append(f"{column} is stated in two ways; left out")
        del found.values[column]
    return found


def _meant(name: str, names: UserMap | None) -> Iterator[Alias]:
    chosen = [column for column, told in names.columns.items() if told == name] if names else []
    for column in chosen:
        yield Alias(column, UNITS[names.units.get(column, "B")] if names else 1.0)
    alias = lookup(name)
    if not chosen and alias is not None and not (names and alias.column in names.columns):
        yield alias


def _read(alias: Alias, value: Any) -> Any:
    if alias.words:
        return alias.words.get(str(value).strip().lower())
    if alias.inverse:
        return 1 / _above_zero(value)
    if alias.column in MEASURED:
        return _above_zero(value) * alias.scale
    return typed(alias.column, value, alias.scale)


def _above_zero(value: Any) -> float:
    number = float(str(value).replace(",", ""))
    if not 1e-18 < number < 1e18:
        raise ValueError
    return number


def _lost(value: Any) -> bool:
    return str(value).strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def steady(readings: Sequence[Any]) -> Any:
    """The median of a metric's readings after its first ``WARMUP``; the last where there are too few."""
    if len(readings) <= 2 * WARMUP:
        return readings[-1]
    return median(readings[WARMUP:])


def is_measure(name: str, names: UserMap | None = None) -> bool:
    """Whether a metric of that name is a speed, and so read over its whole history."""
    return any(alias.column in MEASURED for alias in _meant(name, names))


def ended(found: Stated, state: Status, said: str, logged: bool) -> dict[str, Any] | str:
    """``status`` and ``cause`` by what was ``said`` of the end and ``logged``; or why it is no trial."""
    if state is not Status.OK:
        return {"status": str(state), "cause": said}
    if found.diverged:
        return {"status": str(Status.DIVERGED), "cause": "the last loss is no finite number"}
    if found.measured:
        return {"status": str(Status.OK)}
    if not logged:
        return {"status": str(Status.CRASH), "cause": f"{said}, but no metric was logged"}
    if found.unread:
        return f"{found.unread[0]} does not say its unit, or of what it is; name it under columns in --map"
    return "has no metric known as throughput or step time; name it under columns in --map"


def flat(nested: Mapping[Any, Any], prefix: str = "", depth: int = 8) -> dict[str, Any]:
    """Nested settings as one level, names joined by ``/``; lists are left out."""
    result: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}/", depth - 1) if depth else {}
        elif not isinstance(value, (list, tuple)):
            result[f"{prefix}{key}"] = value
    return result
