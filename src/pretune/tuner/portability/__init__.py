"""Performance portability of LLM pretraining: Pennycook's metric over platforms, for policies of tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pretune.datasets.trial import Trial
from pretune.errors import InputError
from pretune.tuner.portability import efficiency as kinds
from pretune.tuner.portability.policies import Policy, policies
from pretune.tuner.portability.replay import Progress, Replays
from pretune.tuner.portability.scores import Scores, scores
from pretune.tuner.portability.table import Array, Problem, problems

DRAWS = 2000


@dataclass(frozen=True)
class Outcome:
    """One policy on one problem. ``efficiencies`` (p,) by kind: 0 where a platform is unsupported, None where
    nobody ran what the policy would, or the kind is not known there. ``scores`` by kind; None unless every
    platform has an efficiency."""

    policy: str
    note: str
    efficiencies: dict[str, list[float | None]]
    scores: dict[str, Scores | None]
    hfu: list[float | None]

    def asdict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "note": self.note,
            "efficiencies": self.efficiencies,
            "hfu": self.hfu,
            "scores": {kind: found and found.asdict() for kind, found in self.scores.items()},
        }


@dataclass(frozen=True)
class Portability:
    """All policies on one problem; ``searched`` (p,): of how many configurations the best known is one."""

    problem: str
    platforms: list[str]
    searched: list[int]
    outcomes: list[Outcome]

    def asdict(self) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "platforms": self.platforms,
            "searched": self.searched,
            "policies": [outcome.asdict() for outcome in self.outcomes],
        }


def portability(
    trials: Sequence[Trial],
    platforms: Sequence[str] = (),
    budget: int = 6,
    seeds: int = 5,
    progress: Progress | None = None,
) -> list[Portability]:
    """Every problem that two platforms or more ran. ``budget``: trials of pretune's own policy; 0: without.

    ``progress``: see :class:`~pretune.tuner.portability.replay.Replays`.
    Raises :class:`InputError` when no problem is there, or a platform is not in ``trials``.
    """
    known = sorted({trial.platform.name for trial in trials})
    for name in platforms:
        if name not in known:
            raise InputError(f"--platforms: {name!r} is not in the history; known: {', '.join(known)}")
    found = problems(trials, platforms)
    if not found:
        raise InputError(
            "history: no workload whose sequence length, batch and precision are stated ran on two platforms "
            "or more under one framework; record or import its trials on another one"
        )
    if not budget:
        return [_judged(problem, 0) for problem in found]
    replayed = Replays(trials, budget, seeds, progress).of(found)
    return [_judged(problem, budget, chosen) for problem, chosen in zip(found, replayed, strict=True)]


def _judged(problem: Problem, budget: int, replayed: Sequence[list[int | None]] = ()) -> Portability:
    """``replayed`` (seeds, p): what pretune chose within the budget."""
    figures = {kind: getattr(kinds, kind)(problem) for kind in kinds.KINDS}
    draws = _draws(problem)
    outcomes = [
        _outcome(problem, policy, figures, draws) for policy in policies(problem, figures["application"])
    ]
    searched = np.isfinite(problem.speed).sum(axis=0).tolist()
    if replayed:
        outcome = _mean_outcome(problem, f"pretune, {budget} trials", replayed, figures, draws)
        few = [p.name for p, n in zip(problem.platforms, searched, strict=True) if n <= budget]
        note = f"; all that was recorded on {', '.join(few)} is tried" if few else ""
        outcomes.append(replace(outcome, note=outcome.note + note))
    return Portability(problem.name, [platform.name for platform in problem.platforms], searched, outcomes)


def _draws(problem: Problem) -> Array | None:
    """(n, c, p) application efficiencies, every measurement drawn again from its error; None without any."""
    if not np.isfinite(problem.error).any():
        return None
    rng = np.random.default_rng(0)
    usual = np.nanmedian(problem.error)
    error = np.where(np.isfinite(problem.error), problem.error, usual)
    drawn = problem.speed * np.exp(error * rng.standard_normal((DRAWS, *problem.speed.shape)))
    best = np.nanargmax(kinds.application(problem), axis=0)
    # against the configuration that is the best known: the maximum of noisy draws would be above it
    return np.asarray(drawn / drawn[:, best, np.arange(len(best))][:, None, :])


def _outcome(problem: Problem, policy: Policy, figures: dict[str, Array], draws: Array | None) -> Outcome:
    at = [(row, j) for j, row in enumerate(policy.rows)]
    cells = {kind: [_cell(figure, row, j) for row, j in at] for kind, figure in figures.items()}
    complete = None not in policy.rows
    mine = None
    if draws is not None and complete:
        mine = np.stack([draws[:, row, j] for row, j in at if row is not None], axis=1)
    found = {kind: _scores(values, mine if kind == "application" else None) for kind, values in cells.items()}
    return Outcome(policy.name, policy.note, cells, found, [_hfu(problem, cells, row, j) for row, j in at])


def _mean_outcome(
    problem: Problem,
    name: str,
    chosen: Sequence[list[int | None]],
    figures: dict[str, Array],
    draws: Array | None,
) -> Outcome:
    """Of several seeds: each efficiency is the mean over them."""
    each = [_outcome(problem, Policy(name, rows), figures, draws) for rows in chosen]
    cells = {
        kind: [_mean([one.efficiencies[kind][j] for one in each]) for j in range(len(problem.platforms))]
        for kind in figures
    }
    found = {kind: _scores(values) for kind, values in cells.items()}
    application = [one.scores["application"] for one in each if one.scores["application"]]
    if (middle := found["application"]) and all(one.interval for one in application):
        low, high = np.mean([one.interval for one in application if one.interval], axis=0)
        found["application"] = Scores(
            middle.harmonic, middle.arithmetic, middle.worst, middle.supported, (float(low), float(high))
        )
    hfu = [_mean([one.hfu[j] for one in each]) for j in range(len(problem.platforms))]
    return Outcome(name, f"mean of {len(each)} seeds, replayed", cells, found, hfu)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _scores(values: Sequence[float | None], draws: Array | None = None) -> Scores | None:
    known = [value for value in values if value is not None]
    return scores(known, draws) if len(known) == len(values) else None


def _cell(figure: Array, row: int | None, j: int) -> float | None:
    value = float(figure[row, j]) if row is not None else np.nan
    return value if np.isfinite(value) else None


def _hfu(problem: Problem, cells: dict[str, list[float | None]], row: int | None, j: int) -> float | None:
    mfu = cells["architectural"][j]
    more = kinds.hardware_flops(problem.workload, problem.configurations[row]) if row is not None else None
    return mfu * more if mfu is not None and more is not None else None
