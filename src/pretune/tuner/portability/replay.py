"""pretune's own policy: what it chooses within a budget of trials, replayed from the recorded ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from pretune.datasets.schema import flatten, to_table
from pretune.datasets.trial import StatedTrial, Trial
from pretune.tuner.portability.table import Problem, choice, kind_of
from pretune.tuner.strategies import strategy

OF_THE_RUN = {"trial_id", "session_id", "purpose", "seed"}  # what no prediction may look at

Progress = Callable[[int, int, float | None], None]  # replays done, of how many; seconds left, None: unknown


@dataclass
class Replays:
    """Replays of ``budget`` trials on each platform of each problem, ``seeds`` times.

    Each learns the trials of all other kinds of hardware, which takes seconds to minutes: ``progress`` is
    told before the first one and after each. Where no more configurations than the budget were recorded,
    all would be tried, and none is replayed.
    """

    trials: Sequence[Trial]
    budget: int
    seeds: int
    progress: Progress | None = None
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def count(self, problems: Sequence[Problem]) -> int:
        """How many will run."""
        chosen_from = (n for problem in problems for n in np.isfinite(problem.speed).sum(axis=0))
        return self.seeds * sum(bool(n > self.budget) for n in chosen_from)

    def of(self, problems: Sequence[Problem]) -> list[list[list[int | None]]]:
        """(problems, seeds, p) the configuration that is the best of those tried, None where none ran."""
        of = self.count(problems)
        if of:
            self._tell(of)
        return [self._problem(problem, of) for problem in problems]

    def _problem(self, problem: Problem, of: int) -> list[list[int | None]]:
        found: list[list[int | None]] = [[] for _ in range(self.seeds)]
        for j in range(len(problem.platforms)):
            rows = np.flatnonzero(np.isfinite(problem.speed[:, j])).tolist()
            if len(rows) <= self.budget:
                for chosen in found:
                    chosen.append(best_of(problem, j, rows))
                continue
            history = self.history(problem, j)
            for seed, chosen in enumerate(found):
                chosen.append(self._replayed(problem, j, rows, history, seed))
                self.done += 1
                self._tell(of)
        return found

    def _tell(self, of: int) -> None:
        if self.progress:
            each = (time.monotonic() - self.began) / self.done if self.done else None
            self.progress(self.done, of, None if each is None else each * (of - self.done))

    def history(self, problem: Problem, j: int) -> pl.DataFrame:
        """What other kinds of hardware ran: of this one, in whatever size, nothing is known."""
        kind = kind_of(problem.platforms[j])
        return pl.DataFrame(to_table([each for each in self.trials if kind_of(each.platform) != kind]))

    def _replayed(
        self, problem: Problem, j: int, rows: list[int], history: pl.DataFrame, seed: int
    ) -> int | None:
        trials = [_middle(problem, row, j) for row in rows]
        search = strategy("transfer")(_candidates(trials), history, seed)
        tried = []
        for _ in range(self.budget):
            (at,) = search.ask(1)
            search.tell(at, trials[at])
            tried.append(rows[at])
        return best_of(problem, j, tried)


def best_of(problem: Problem, j: int, rows: Sequence[int]) -> int | None:
    """The fastest of some configurations on a platform; None when none of them ran."""
    best = max(rows, key=lambda row: problem.speed[row, j])
    return best if problem.speed[best, j] > 0 else None


def _middle(problem: Problem, row: int, j: int) -> Trial:
    """The recorded trial of a cell; of several the one in the middle."""
    told = problem.trials[choice(problem.configurations[row]), problem.platforms[j].name]
    ordered = sorted(told, key=lambda trial: trial.tokens_per_s_per_device or 0.0)
    return ordered[len(ordered) // 2]


def _candidates(trials: Sequence[Trial]) -> pl.DataFrame:
    """(n rows) in the store's columns, with what was known before they ran alone."""
    sheets = [
        StatedTrial.model_validate({name: getattr(trial, name) for name in StatedTrial.model_fields})
        for trial in trials
    ]
    before = {column for sheet in sheets for column in flatten(sheet)} - OF_THE_RUN
    kept = [name for name in sorted(before) if not name.startswith("measure.")]
    return pl.DataFrame(to_table(list(trials))).select(kept)
