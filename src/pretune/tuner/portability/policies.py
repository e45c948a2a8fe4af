"""The policies: ways to choose a configuration for each platform of a set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from pretune.datasets.schema import to_table
from pretune.datasets.trial import Trial
from pretune.tuner.portability.scores import harmonic
from pretune.tuner.portability.table import Array, Problem, key
from pretune.tuner.space import Candidates
from pretune.tuner.tuner import Tuner


@dataclass(frozen=True)
class Policy:
    """``rows`` (p,): the configuration that it runs on each platform, or None where nobody ran that there."""

    name: str
    rows: list[int | None]
    note: str = ""


def policies(problem: Problem, efficiency: Array) -> list[Policy]:
    """All but pretune's own; ``efficiency`` (c, p) is the application efficiency."""
    platforms = problem.platforms
    found = [Policy("stock defaults", [problem.default(platform) for platform in platforms])]
    everywhere = np.flatnonzero(np.isfinite(efficiency).all(axis=1))
    if len(everywhere):
        one = best_single(efficiency, everywhere.tolist())
        note = "chosen on these very figures" if len(everywhere) > 1 else "the only one that ran everywhere"
        found.append(Policy("best single configuration", [one] * len(platforms), note))
    for j, platform in enumerate(platforms):
        best = int(np.nanargmax(efficiency[:, j]))
        found.append(Policy(f"tuned on {platform.name}", [best] * len(platforms)))
    tuned: list[int | None] = [int(np.nanargmax(column)) for column in efficiency.T]
    return [
        *found,
        Policy("tuned on each", tuned, "1 by construction: the best known is what it is held against"),
    ]


def best_single(efficiency: Array, rows: Sequence[int]) -> int:
    """The row with the best harmonic mean over the platforms; of those that fail somewhere, the best mean."""
    return max(rows, key=lambda row: (harmonic(efficiency[row]), efficiency[row].mean()))


def within_budget(
    problem: Problem,
    others: Sequence[Trial],
    budget: int,
    seeds: int,
    progress: Callable[[str], None] | None = None,
) -> list[list[int | None]]:
    """(seeds, p) what pretune chose on each platform after ``budget`` trials there, replayed from the
    recorded ones, with ``others``, the trials of all other platforms, as history."""
    found: list[list[int | None]] = [[] for _ in range(seeds)]
    for j, platform in enumerate(problem.platforms):
        rows = np.flatnonzero(np.isfinite(problem.speed[:, j])).tolist()
        if progress:
            progress(f"{problem.name}: pretune on {platform.name}, {budget} of {len(rows)} configurations")
        history = pl.DataFrame(to_table([t for t in others if t.platform.name != platform.name]))
        for seed in range(seeds):
            found[seed].append(_replayed(problem, j, rows, history, budget, seed))
    return found


def _replayed(
    problem: Problem, j: int, rows: list[int], history: pl.DataFrame, budget: int, seed: int
) -> int | None:
    platform = problem.platforms[j]
    trials = [_trial(problem, row, j) for row in rows]
    candidates = Candidates(problem.workload, platform, problem.framework, [trial.knobs for trial in trials])
    tuner = Tuner.over(candidates, history, seed=seed)
    for _ in range(min(budget, len(rows))):
        (proposal,) = tuner.ask()
        tuner.tell(trials[candidates.row_of(proposal.knobs) or 0])
    best = tuner.best()
    return problem.row(best.knobs) if best else None


def _trial(problem: Problem, row: int, j: int) -> Trial:
    """The recorded trial of a cell; of several the one in the middle."""
    told = problem.trials[key(problem.configurations[row]), problem.platforms[j].name]
    ordered = sorted(told, key=lambda trial: trial.tokens_per_s_per_device or 0.0)
    return ordered[len(ordered) // 2]
