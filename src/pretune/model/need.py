"""How much memory a configuration needs: physics by learned factors, and trees on what peaks show beyond."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import norm

from pretune.model.base import Array, Baseline
from pretune.model.boosting import ResidualTrees
from pretune.model.columns import configurations, numbered, numbers, ran, rows, words
from pretune.model.factors import Factors, Rows
from pretune.model.physics.memory import STATED_SD

# columns of a measured peak: what the device had in use, else what the allocator reserved, else allocated
PEAKS = tuple(f"peak_memory_{kind}_bytes" for kind in ("device", "reserved", "allocated"))
FOLDS = 5
PHYSICS_SD = STATED_SD  # of log memory about the physics, before any peak was measured
LEAST_SD = 0.1  # between what a device has in use and what it can give
PRIOR_ROWS = 3  # how many peaks of its own the target needs to be believed as much as the sources
ROUNDS = 60  # of the trees
TRUST = 0.5  # in the sources' factors: nanotron's sizes, played as targets, hardly tell 0.3 from 0.9


class MemoryNeed:
    """Log of peak memory over the device's capacity, by rows in the store's columns.

    ``matrix`` (n, f) is always the frame in one encoding. Where nobody states a capacity, what
    outcomes show stands in for it, or the most that a trial needed that ran.
    """

    def __init__(self, baseline: Baseline, seed: int = 0) -> None:
        self.baseline, self.seed = baseline, seed
        self.factors_ = Factors()
        self.trees_ = self._trees(ROUNDS)
        self.shift_ = 0.0
        self.usual_ = np.nan
        self.sd_ = PHYSICS_SD

    def _trees(self, rounds: int) -> ResidualTrees:
        return ResidualTrees(rounds, 4, 0.15, PHYSICS_SD, self.seed, n_jobs=1)

    def fit(self, frame: pl.DataFrame, matrix: Array) -> Self:
        """Learn from n >= 0 trials: factors from the peaks that were measured and from what ran out of
        memory, trees from the peaks alone."""
        self.factors_ = Factors().fitted(self._rows(frame))
        error = self._error(frame)
        known = np.isfinite(error)
        self._grow(rows(frame, known), matrix[known], error[known])
        self.usual_ = self.factors_.capacity
        if np.isnan(self.usual_):
            unstated = np.isnan(numbers(frame, "accelerator.memory_bytes")) & ran(frame)
            need = self._log_bytes(frame, matrix)[unstated]
            self.usual_ = float(np.exp(np.nanmax(need))) if np.isfinite(need).any() else np.nan
        return self

    def _grow(self, frame: pl.DataFrame, matrix: Array, error: Array) -> None:
        """Trees, if they help on models and platforms that they have not seen; and how far off the log need
        of one such is then."""
        nowhere = np.zeros((len(error), 0))  # distances are of no interest here
        missed = {}
        for rounds in (0, ROUNDS):
            off = [
                self._trees(rounds).out_of_fold(matrix, error, nowhere, groups, FOLDS)[0]
                for groups in _groupings(frame)
            ]
            missed[rounds] = max((_middle(np.abs(each)) for each in off), default=np.nan)
        chosen = ROUNDS if not missed[ROUNDS] >= missed[0] else 0
        self.trees_ = self._trees(chosen).fit(matrix, error)
        seen = PHYSICS_SD if np.isnan(missed[chosen]) else np.hypot(LEAST_SD, missed[chosen] / norm.ppf(0.75))
        weight = len(error) / (len(error) + PRIOR_ROWS) if np.isfinite(missed[chosen]) else 0.0
        self.sd_ = float(np.sqrt(weight * seen**2 + (1 - weight) * PHYSICS_SD**2))

    def told(self, frame: pl.DataFrame, matrix: Array) -> Self:
        """The same, with factors and a shift that the target's own trials show."""
        found = copy(self)
        found.factors_ = self.factors_.fitted(self._rows(frame), trust=TRUST)
        error = found._error(frame)
        error = (error - self.trees_.predict(matrix))[np.isfinite(error)]
        if len(error):
            found.shift_ = float(np.median(error)) * len(error) / (len(error) + PRIOR_ROWS)
        return found

    def _rows(self, frame: pl.DataFrame) -> Rows:
        return Rows(
            seen=self.baseline.memory_terms(frame, reported=True),
            needed=self.baseline.memory_terms(frame),
            kernel=words(frame, "knob.attention"),
            peak=measured_peak(frame),
            capacity=numbers(frame, "accelerator.memory_bytes"),
            status=words(frame, "status", "ok"),
        )

    def over_capacity(self, frame: pl.DataFrame, matrix: Array) -> Array:
        """(n,) NaN where physics says nothing of memory, or the capacity is unknown."""
        capacity = numbers(frame, "accelerator.memory_bytes", self.usual_)
        with np.errstate(invalid="ignore"):
            return np.asarray(self._log_bytes(frame, matrix) - np.log(capacity))

    def needed_bytes(self, frame: pl.DataFrame, matrix: Array) -> Array:
        """(n,) what the fullest device needs; NaN where physics says nothing of memory."""
        return np.asarray(np.exp(self._log_bytes(frame, matrix)))

    def peak_bytes(self, frame: pl.DataFrame, matrix: Array) -> Array:
        """(n,) what a trial's own figure is predicted to be, which need not be of the fullest stage."""
        return np.asarray(np.exp(self._log_bytes(frame, matrix, reported=True)))

    def _log_bytes(self, frame: pl.DataFrame, matrix: Array, reported: bool = False) -> Array:
        log_bytes = self.factors_.log_bytes(
            self.baseline.memory_terms(frame, reported), words(frame, "knob.attention")
        )
        return np.asarray(log_bytes + self.trees_.predict(matrix) + self.shift_)

    def _error(self, frame: pl.DataFrame) -> Array:
        """(n,) log of the measured peak over what the factors say; NaN where there is none."""
        terms = self.baseline.memory_terms(frame, reported=True)
        said = self.factors_.log_bytes(terms, words(frame, "knob.attention"))
        return np.asarray(np.log(measured_peak(frame)) - said)

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path) -> dict[str, Any]:
        """Write ``memory.ubj`` where there are trees; returns the rest, for JSON."""
        usual = None if np.isnan(self.usual_) else self.usual_
        return {"factors": self.factors_.state(), "trees": self.trees_.save(folder, "memory"), "usual": usual}

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any], baseline: Baseline) -> Self:
        model = cls(baseline)
        model.factors_ = Factors.restore(state["factors"])
        model.trees_ = ResidualTrees.restore(folder, state["trees"])
        model.usual_ = np.nan if state["usual"] is None else state["usual"]
        return model


def measured_peak(frame: pl.DataFrame) -> Array:
    """(n,) bytes; NaN where none was measured, or the trial did not end well."""
    measured = np.full(len(frame), np.nan)
    for name in PEAKS:
        figure = numbers(frame, name)
        measured = np.where(np.isnan(measured) & (figure > 0), figure, measured)
    return np.where(ran(frame), measured, np.nan)


def _groupings(frame: pl.DataFrame) -> list[NDArray[np.int64]]:
    """What a new trial may be the first of: a model, a platform; with one of each, a configuration."""
    shape = [words(frame, f"model.{name}") for name in ("layers", "hidden_size")]
    models = [f"{layers} {hidden}" for layers, hidden in zip(*shape, strict=True)]
    platforms = words(frame, "platform.name").tolist()
    several = [numbered(names) for names in (models, platforms) if len(set(names)) > 1]
    return several or [numbered(configurations(frame))]


def _middle(values: Array) -> float:
    """The median of what is finite; NaN of nothing."""
    return float(np.median(values[np.isfinite(values)])) if np.isfinite(values).any() else np.nan
