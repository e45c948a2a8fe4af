"""Paired comparisons: configurations that were run and differ in one knob alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from pretune.datasets.knobs import KnobValue
from pretune.tuner.portability.table import Problem

LEAST_PAIRS = 3  # of which the spread tells an interval
INTERVAL = 0.95
SIGNIFICANT = 0.01  # of an interaction, over all knobs that it could be with
LEAST_EACH = 2  # pairs on each side of an interaction


@dataclass(frozen=True)
class Effect:
    """One knob from ``reference`` to ``value``, all else equal.

    ``ratio`` of throughput over ``pairs`` of configurations, with a 95 % interval; None where there is not
    enough to tell it. ``breaks``, ``mends``: pairs in which ``value`` fails and ``reference`` runs, and the
    other way round. ``depends_on``: the knob with which the ratio changes most, by its values, where it
    does so beyond chance.
    """

    knob: str
    reference: KnobValue | None
    value: KnobValue | None
    pairs: int
    ratio: float | None
    low: float | None
    high: float | None
    breaks: int
    mends: int
    depends_on: str | None = None
    ratios_by: dict[str, float] | None = None

    @property
    def matters(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def effects_of(
    problem: Problem, j: int, settings: dict[int, dict[str, KnobValue]], name: str, stock: Mapping[str, Any]
) -> list[Effect]:
    """Of every value of one knob against the default's, or the one that most configurations have."""
    groups: dict[frozenset[tuple[str, KnobValue]], dict[Any, int]] = defaultdict(dict)
    for row, told in settings.items():
        rest = frozenset(item for item in told.items() if item[0] != name)
        groups[rest][told.get(name)] = row
    counts = Counter(told.get(name) for told in settings.values())
    reference = stock.get(name) if stock.get(name) in counts else counts.most_common(1)[0][0]
    values = sorted((value for value in counts if value != reference), key=str)
    return [_effect(problem, j, settings, name, reference, value, groups.values()) for value in values]


def _effect(
    problem: Problem,
    j: int,
    settings: dict[int, dict[str, KnobValue]],
    name: str,
    reference: Any,
    value: Any,
    groups: Iterable[Mapping[Any, int]],
) -> Effect:
    speed = problem.speed[:, j]
    both = [(group[reference], group[value]) for group in groups if reference in group and value in group]
    ran = [(a, b) for a, b in both if speed[a] > 0 and speed[b] > 0]
    logs = np.array([math.log(speed[b] / speed[a]) for a, b in ran])
    noise = math.sqrt(2) * _noise(problem, j)
    low, high = interval(logs, noise)
    depends, by = _interaction(logs, [settings[a] for a, _ in ran], noise)
    told = low is not None and high is not None
    return Effect(
        name,
        reference,
        value,
        len(ran),
        float(np.exp(logs.mean())) if told else None,
        math.exp(low) if low is not None else None,
        math.exp(high) if high is not None else None,
        sum(bool(speed[a] > 0 and speed[b] == 0) for a, b in both),
        sum(bool(speed[a] == 0 and speed[b] > 0) for a, b in both),
        depends,
        by,
    )


def _noise(problem: Problem, j: int) -> float:
    """Relative standard error of a usual measurement there; NaN where none is known."""
    known = problem.error[:, j][np.isfinite(problem.error[:, j])]
    return float(np.median(known)) if len(known) else math.nan


def interval(logs: np.ndarray, noise: float) -> tuple[float | None, float | None]:
    """Of the mean of (n,) log ratios, by Student's t and never narrower than the measurements' own error
    allows; (None, None) below :data:`LEAST_PAIRS`: how configurations differ cannot be told from fewer."""
    n = len(logs)
    if n < LEAST_PAIRS:
        return None, None
    spread = float(stats.t.ppf(0.5 + INTERVAL / 2, n - 1) * logs.std(ddof=1))
    least = float(stats.norm.ppf(0.5 + INTERVAL / 2)) * noise if math.isfinite(noise) else 0.0
    half = max(spread, least) / math.sqrt(n)
    return float(logs.mean() - half), float(logs.mean() + half)


def _interaction(
    logs: np.ndarray, settings: Sequence[Mapping[str, KnobValue]], noise: float
) -> tuple[str | None, dict[str, float] | None]:
    """The knob whose values part the pairs most clearly (one-way analysis of variance, Bonferroni)."""
    varied = [name for name in names(settings) if len({each.get(name) for each in settings}) > 1]
    best: tuple[float, str | None, dict[str, float] | None] = (SIGNIFICANT, None, None)
    for name in varied:
        parts: dict[str, list[float]] = defaultdict(list)
        for log, told in zip(logs, settings, strict=True):
            parts[str(told.get(name))].append(float(log))
        if len(parts) < 2 or min(map(len, parts.values())) < LEAST_EACH:
            continue
        means = [float(np.mean(part)) for part in parts.values()]
        if max(means) - min(means) <= (2 * noise if math.isfinite(noise) else 0.0) or np.ptp(logs) == 0:
            continue
        chance = _chance(list(parts.values())) * len(varied)
        if chance < best[0]:
            best = (chance, name, {value: math.exp(np.mean(part)) for value, part in parts.items()})
    return best[1], best[2]


def _chance(parts: list[list[float]]) -> float:
    if all(np.ptp(part) == 0 for part in parts):
        return 0.0
    return float(stats.f_oneway(*parts).pvalue)


def names(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for each in settings for name in each))
