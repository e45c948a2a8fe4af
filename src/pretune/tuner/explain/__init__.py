"""What each knob is worth on each platform: pairs of real trials that differ in it alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pretune.datasets.knobs import KnobValue
from pretune.datasets.trial import Trial
from pretune.errors import InputError
from pretune.tuner.explain.effects import Effect, effects_of, names
from pretune.tuner.explain.predicted import Predicted, predicted_of
from pretune.tuner.portability.table import DERIVED, Problem, problems

__all__ = ["Effect", "Insight", "Predicted", "explain"]


@dataclass(frozen=True)
class Insight:
    """One workload on one platform.

    ``default_share``: of the best known throughput; None where the framework's default was not run. ``best``:
    what the best known configuration has, of the knobs that vary; where the default was run, of those in
    which it differs. ``alone``: single changes of the default that were run, each with its ratio to the
    default's throughput, the best first; a value of None is unset.
    """

    problem: str
    platform: str
    trials: int
    effects: list[Effect]
    predicted: list[Predicted]
    default_share: float | None
    best: dict[str, Any] | None
    alone: list[tuple[str, KnobValue | None, float]]

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


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
    varied = [name for name in names(settings.values()) if len({s.get(name) for s in settings.values()}) > 1]
    default = problem.default(platform)
    known = default is not None and math.isfinite(speed[default])
    stock = settings[default] if known and default is not None else {}
    effects = [effect for name in varied for effect in effects_of(problem, j, settings, name, stock)]
    best = int(np.nanargmax(speed)) if np.nanmax(speed, initial=0.0) > 0 else None
    share = speed[default] / speed[best] if known and default is not None and best is not None else None
    return Insight(
        problem.name,
        platform.name,
        len(problem.on(platform)),
        sorted(effects, key=lambda effect: -abs(math.log(effect.ratio or 1.0))),
        predicted_of(problem, j, [settings[row] for row in ran], [e for e in effects if e.ratio is None]),
        None if share is None else float(share),
        {n: v for n, v in settings[best].items() if n in varied and stock.get(n) != v}
        if best is not None
        else None,
        _alone(settings, speed, default, varied) if known else [],
    )


def _settings(problem: Problem, row: int) -> dict[str, KnobValue]:
    told = problem.configurations[row].settings()
    return {name: value for name, value in told.items() if name not in DERIVED}


def _alone(
    settings: dict[int, dict[str, KnobValue]], speed: np.ndarray, default: int | None, varied: Sequence[str]
) -> list[tuple[str, KnobValue | None, float]]:
    if default is None or not speed[default] > 0:
        return []
    stock = settings[default]
    found: list[tuple[str, KnobValue | None, float]] = []
    for row, told in settings.items():
        changed = [name for name in varied if told.get(name) != stock.get(name)]
        if len(changed) == 1 and speed[row] > 0:
            found.append((changed[0], told.get(changed[0]), float(speed[row] / speed[default])))
    return sorted(found, key=lambda each: -each[2])
