"""pretune behind Optuna: ``optuna.create_study(sampler=PretuneSampler(history=...))``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from pretune.errors import InputError
from pretune.tuner.function import Choice, Search, check_history, speed_of

MOST_POINTS = 20_000  # of a space; of a larger one so many are drawn at random
STEPS = 33  # values of a range without steps


class PretuneSampler(BaseSampler):
    """Suggests what other devices' tables and the study's own trials promise most of.

    ``history``: see :func:`~pretune.tuner.function.tune_function`; its ``knob.NAME`` columns are the
    parameters' names. ``search_space``: the parameters by name; without it, those that all finished trials
    had, so that the first trial is the history's best. Objectives are above 0 (seconds, rates); a
    trial that failed or was pruned is one that did not run. One objective.
    """

    def __init__(
        self,
        history: pl.DataFrame | None = None,
        search_space: Mapping[str, BaseDistribution] | None = None,
        name: str = "here",
        seed: int = 0,
    ) -> None:
        if history is not None:
            check_history(history)
        self.history, self.name, self.seed = history, name, seed
        self.search_space = dict(search_space) if search_space else None
        self._seen = IntersectionSearchSpace()
        self._random = RandomSampler(seed)
        self._searches: dict[tuple[tuple[str, str], ...], Search] = {}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        found = self.search_space or self._seen.calculate(study)
        return {name: kind for name, kind in found.items() if not kind.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        if len(study.directions) > 1:
            raise InputError("PretuneSampler: has one objective; give the study one direction")
        told, pending = self._trials(study, set(search_space))
        return self._search(search_space).next(told, pending) or {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        value = self._known.get(param_name)
        if value is not None and param_distribution._contains(_internal(param_distribution, value)):
            return value
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    @cached_property
    def _known(self) -> Choice:
        """The most promising of the history's own rows, for a trial that shows what the parameters are."""
        if self.history is None:
            return {}
        knobs = [name for name in self.history.columns if name.startswith("knob.")]
        rows = self.history.select(knobs).unique(maintain_order=True).drop_nulls()
        grid = rows.rename(lambda name: name.removeprefix("knob."))
        return Search(grid, self.history, self.name, self.seed).next([]) or {}

    def _search(self, search_space: Mapping[str, BaseDistribution]) -> Search:
        key = tuple((name, repr(kind)) for name, kind in sorted(search_space.items()))
        if key not in self._searches:
            self._searches[key] = Search(points(search_space, self.seed), self.history, self.name, self.seed)
        return self._searches[key]

    def _trials(
        self, study: Study, names: set[str]
    ) -> tuple[list[tuple[Choice, float | None]], list[Choice]]:
        told: list[tuple[Choice, float | None]] = []
        pending: list[Choice] = []
        maximize = study.direction is StudyDirection.MAXIMIZE
        for trial in study.get_trials(deepcopy=False):
            if not names <= trial.params.keys():
                if trial.state is TrialState.RUNNING and trial.system_attrs.get("relative_params"):
                    pending.append(trial.system_attrs["relative_params"])
            elif trial.state is TrialState.COMPLETE:
                told.append((trial.params, speed_of(trial.value, maximize)))
            elif trial.state in (TrialState.FAIL, TrialState.PRUNED):
                told.append((trial.params, None))
            else:
                pending.append(trial.params)
        return told, pending


def _internal(kind: BaseDistribution, value: Any) -> float:
    try:
        return kind.to_internal_repr(value)
    except (TypeError, ValueError):
        return math.nan


def points(search_space: Mapping[str, BaseDistribution], seed: int) -> pl.DataFrame:
    """A column per parameter: all combinations of its values, or :data:`MOST_POINTS` of them at random."""
    values = {name: _values(kind) for name, kind in search_space.items()}
    count = math.prod(len(each) for each in values.values())
    if count <= MOST_POINTS:
        grids = [pl.DataFrame({name: each}) for name, each in values.items()]
        found = grids[0]
        for grid in grids[1:]:
            found = found.join(grid, how="cross")
        return found
    rng = np.random.default_rng(seed)
    drawn = {
        name: [each[i] for i in rng.integers(len(each), size=MOST_POINTS)] for name, each in values.items()
    }
    return pl.DataFrame(drawn).unique(maintain_order=True)


def _values(kind: BaseDistribution) -> list[Any]:
    """What a parameter may be; ``STEPS`` values of a range without steps, evenly or by ratio."""
    if isinstance(kind, CategoricalDistribution):
        return list(kind.choices)
    if not isinstance(kind, IntDistribution | FloatDistribution):
        raise InputError(f"PretuneSampler: {kind} is no distribution that it knows")
    if isinstance(kind, IntDistribution):
        every = range(kind.low, kind.high + 1, kind.step)
        if not kind.log and len(every) <= MOST_POINTS:
            return list(every)
        return sorted({round(x) for x in np.geomspace(kind.low, kind.high, STEPS)})
    if kind.step is not None:
        return [kind.low + i * kind.step for i in range(round((kind.high - kind.low) / kind.step) + 1)]
    spaced = np.geomspace if kind.log else np.linspace
    return [float(x) for x in np.clip(spaced(kind.low, kind.high, STEPS), kind.low, kind.high)]
