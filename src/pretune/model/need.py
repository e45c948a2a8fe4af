"""How much memory a configuration needs: physics, and trees on what measured peaks show beyond it."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from scipy.stats import norm

from pretune.model.base import Array, Baseline
from pretune.model.boosting import ResidualTrees
from pretune.model.columns import configurations, numbered, numbers, ran, rows, words

# columns of a measured peak: what the device had in use, else what the allocator reserved, else allocated
PEAKS = tuple(f"peak_memory_{kind}_bytes" for kind in ("device", "reserved", "allocated"))
FOLDS = 5
PHYSICS_SD = 0.45  # of log memory about the physics, before any peak was measured
LEAST_SD = 0.1  # between what a device has in use and what it can give
PRIOR_ROWS = 3  # how many peaks of its own the target needs to be believed as much as the sources


class MemoryNeed:
    """Log of peak memory over the device's capacity, by rows in the store's columns.

    ``matrix`` (n, f) is always the frame in one encoding. Where nobody states a capacity, the most that
    a trial needed that ran stands in for it.
    """

    def __init__(self, baseline: Baseline, seed: int = 0) -> None:
        self.baseline = baseline
        self.trees_ = ResidualTrees(60, 4, 0.15, PHYSICS_SD, seed, n_jobs=1)
        self.shift_ = 0.0
        self.usual_ = np.nan
        self.sd_ = PHYSICS_SD

    def fit(self, frame: pl.DataFrame, matrix: Array) -> Self:
        """Learn from n >= 0 trials; those that did not end well, or measured no peak, teach nothing."""
        error = self._error(frame)
        known = np.isfinite(error)
        self.trees_.fit(matrix[known], error[known])
        self.sd_ = self._spread(rows(frame, known), matrix[known], error[known])
        unstated = np.isnan(numbers(frame, "accelerator.memory_bytes")) & ran(frame)
        need = self._log_bytes(frame, matrix)[unstated]
        self.usual_ = float(np.exp(np.nanmax(need))) if np.isfinite(need).any() else np.nan
        return self

    def _spread(self, frame: pl.DataFrame, matrix: Array, error: Array) -> float:
        """How far the log need of a platform that was never seen is off; with one, of a configuration."""
        names = words(frame, "platform.name").tolist()
        groups = numbered(names if len(set(names)) > 1 else configurations(frame))
        nowhere = np.zeros((len(error), 0))  # distances are of no interest here
        missed, _ = self.trees_.out_of_fold(matrix, error, nowhere, groups, FOLDS)
        missed = np.abs(missed[np.isfinite(missed)])
        seen = np.hypot(LEAST_SD, np.median(missed) / norm.ppf(0.75)) if len(missed) else PHYSICS_SD
        weight = len(missed) / (len(missed) + PRIOR_ROWS)
        return float(np.sqrt(weight * seen**2 + (1 - weight) * PHYSICS_SD**2))

    def told(self, frame: pl.DataFrame, matrix: Array) -> Self:
        """The same, shifted by what the target's own trials show."""
        error = self._error(frame)
        error = (error - self.trees_.predict(matrix))[np.isfinite(error)]
        found = copy(self)
        if len(error):
            found.shift_ = float(np.median(error)) * len(error) / (len(error) + PRIOR_ROWS)
        return found

    def over_capacity(self, frame: pl.DataFrame, matrix: Array) -> Array:
        """(n,) NaN where physics says nothing of memory, or the capacity is unknown."""
        capacity = numbers(frame, "accelerator.memory_bytes", self.usual_)
        with np.errstate(invalid="ignore"):
            return np.asarray(self._log_bytes(frame, matrix) - np.log(capacity))

    def _log_bytes(self, frame: pl.DataFrame, matrix: Array) -> Array:
        return np.asarray(
            np.log(self.baseline.memory_bytes(frame)) + self.trees_.predict(matrix) + self.shift_
        )

    def _error(self, frame: pl.DataFrame) -> Array:
        """(n,) log of the measured peak over the physics; NaN where there is none."""
        measured = np.full(len(frame), np.nan)
        for name in PEAKS:
            figure = numbers(frame, name)
            measured = np.where(np.isnan(measured) & (figure > 0), figure, measured)
        measured = np.where(ran(frame), measured, np.nan)
        return np.asarray(np.log(measured) - np.log(self.baseline.memory_bytes(frame)))

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path) -> dict[str, Any]:
        """Write ``memory.ubj`` where there are trees; returns the rest, for JSON."""
        usual = None if np.isnan(self.usual_) else self.usual_
        return {"trees": self.trees_.save(folder, "memory"), "usual": usual}

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any], baseline: Baseline) -> Self:
        model = cls(baseline)
        model.trees_ = ResidualTrees.restore(folder, state["trees"])
        model.usual_ = np.nan if state["usual"] is None else state["usual"]
        return model
