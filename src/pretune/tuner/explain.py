"""What each knob is worth on each platform: pairs of real trials that differ in it alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from pretune.datasets.frameworks import FRAMEWORKS
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.schema import to_table
from pretune.datasets.trial import Trial
from pretune.errors import InputError
from pretune.tuner.portability.table import DERIVED, Problem, problems
from pretune.tuner.space import Candidates

LEAST_PAIRS = 3  # of which the spread tells an interval
LEAST_TRIALS = 20  # of a platform, for a surrogate of it to be asked
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


@dataclass(frozen=True)
class Predicted:
    """The same by the platform's surrogate, where too few pairs were run: the mean ratio over the recorded
    configurations that could have ``value``, and the range of nine tenths of them. No measurement."""

    knob: str
    reference: KnobValue | None
    value: KnobValue | None
    configurations: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Insight:
    """One workload on one platform. ``default_share``: of the best known throughput; None where the
    framework's default was not run. ``alone``: single changes of the default that were run, with the share of
    its throughput, the best first."""

    problem: str
    platform: str
    trials: int
    effects: list[Effect]
    predicted: list[Predicted]
    default_share: float | None
    best: dict[str, Any] | None
    alone: list[tuple[str, KnobValue, float]]

    def asdict(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        from pretune.tuner.report.comparing import effects_of

        return effects_of([self])._repr_html_()


def explain(trials: Iterable[Trial], platform: str | None = None) -> list[Insight]:
    """Every workload on every platform, or on one; :class:`InputError` for a platform without trials."""
    trials = list(trials)
    known = sorted({trial.platform.name for trial in trials})
    if platform is not None and platform not in known:
        raise InputError(f"--platform: {platform!r} is not in the history; known: {', '.join(known)}")
    found = problems(trials, [platform] if platform else known, least=1)
    return [_insight(each, j) for each in found for j in range(len(each.platforms))]


def _insight(problem: Problem, j: int) -> Insight:
    platform, speed = problem.platforms[j], problem.speed[:, j]
    ran = np.flatnonzero(np.isfinite(speed)).tolist()
    settings = {row: _settings(problem, row) for row in ran}
    varied = [name for name in _names(settings.values()) if len({s.get(name) for s in settings.values()}) > 1]
    default = problem.default(platform)
    known = default is not None and math.isfinite(speed[default])
    stock = settings[default] if known and default is not None else {}
    effects = [effect for name in varied for effect in _effects(problem, j, settings, name, stock)]
    best = int(np.nanargmax(speed)) if np.nanmax(speed, initial=0.0) > 0 else None
    share = speed[default] / speed[best] if known and default is not None and best is not None else None
    return Insight(
        problem.name,
        platform.name,
        sum(len(told) for (_, name), told in problem.trials.items() if name == platform.name),
        sorted(effects, key=lambda effect: -abs(math.log(effect.ratio or 1.0))),
        _predicted(problem, j, [settings[row] for row in ran], [e for e in effects if e.ratio is None]),
        None if share is None else float(share),
        {n: v for n, v in settings[best].items() if n in varied} if best is not None else None,
        _alone(settings, speed, default, varied) if known else [],
    )


def _settings(problem: Problem, row: int) -> dict[str, KnobValue]:
    told = problem.configurations[row].settings()
    return {name: value for name, value in told.items() if name not in DERIVED}


def _names(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for each in settings for name in each))


def _effects(
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
    names = [name for name in _names(settings) if len({each.get(name) for each in settings}) > 1]
    best: tuple[float, str | None, dict[str, float] | None] = (SIGNIFICANT, None, None)
    for name in names:
        parts: dict[str, list[float]] = defaultdict(list)
        for log, told in zip(logs, settings, strict=True):
            parts[str(told.get(name))].append(float(log))
        if len(parts) < 2 or min(map(len, parts.values())) < LEAST_EACH:
            continue
        means = [float(np.mean(part)) for part in parts.values()]
        if max(means) - min(means) <= (2 * noise if math.isfinite(noise) else 0.0) or np.ptp(logs) == 0:
            continue
        chance = _chance(list(parts.values())) * len(names)
        if chance < best[0]:
            best = (chance, name, {value: math.exp(np.mean(part)) for value, part in parts.items()})
    return best[1], best[2]


def _chance(parts: list[list[float]]) -> float:
    if all(np.ptp(part) == 0 for part in parts):
        return 0.0
    return float(stats.f_oneway(*parts).pvalue)


def _alone(
    settings: dict[int, dict[str, KnobValue]], speed: np.ndarray, default: int | None, varied: Sequence[str]
) -> list[tuple[str, KnobValue, float]]:
    if default is None or not speed[default] > 0:
        return []
    stock, found = settings[default], []
    for row, told in settings.items():
        changed = [name for name in varied if told.get(name) != stock.get(name)]
        if len(changed) == 1 and speed[row] > 0:
            found.append((changed[0], told.get(changed[0]) or 0, float(speed[row] / speed[default])))
    return sorted(found, key=lambda each: -each[2])


def _predicted(
    problem: Problem, j: int, settings: Sequence[Mapping[str, KnobValue]], untold: Sequence[Effect]
) -> list[Predicted]:
    platform = problem.platforms[j]
    mine = [trial for (_, name), told in problem.trials.items() if name == platform.name for trial in told]
    if len(mine) < LEAST_TRIALS or not untold or problem.framework not in FRAMEWORKS:
        return []
    from pretune.model import BoostedTrees

    surrogate = BoostedTrees().fit(pl.DataFrame(to_table(mine)))
    found = []
    for effect in untold:
        before = _legal(problem, platform, settings, effect.knob, effect.reference)
        after = _legal(problem, platform, settings, effect.knob, effect.value)
        both = [i for i in range(len(settings)) if before[i] and after[i]]
        if not both:
            continue
        logs = [
            surrogate.predict(
                Candidates(
                    problem.workload, platform, problem.framework, [knobs for i in both if (knobs := each[i])]
                ).frame
            ).log_mean
            for each in (before, after)
        ]
        ratios = np.exp(logs[1] - logs[0])
        low, high = np.quantile(ratios, (0.05, 0.95))
        mean = float(np.exp(np.mean(logs[1] - logs[0])))
        found.append(
            Predicted(effect.knob, effect.reference, effect.value, len(both), mean, float(low), float(high))
        )
    return sorted(found, key=lambda each: -abs(math.log(each.ratio)))


def _legal(
    problem: Problem,
    platform: Platform,
    settings: Sequence[Mapping[str, KnobValue]],
    name: str,
    value: KnobValue | None,
) -> list[Knobs | None]:
    """Each configuration with the knob at ``value``, resolved; None where that is not legal, or not read."""
    declared = FRAMEWORKS[problem.framework]
    found: list[Knobs | None] = []
    for told in settings:
        changed = {n: v for n, v in told.items() if n != name} | ({name: value} if value is not None else {})
        wanted = Knobs(**changed)
        read = name not in declared.unread(platform, wanted)
        legal = read and not declared.problems(problem.workload, platform, wanted)
        found.append(declared.filled(problem.workload, platform, wanted) if legal else None)
    return found
