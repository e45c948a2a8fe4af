"""What one source says of any configuration: trees and a smooth process, each by how well it predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pretune.model.base import Array
from pretune.model.boosting import ResidualTrees
from pretune.model.smooth import MIN_ROWS, Smooth

ROUNDS, DEPTH, ETA = 80, 4, 0.12
FOLDS = 4
NOISE = 0.03  # of log throughput between two runs of one configuration


class Expert:
    """Learns residuals (n,). Where rows are few, a process is the better half; else trees.

    ``share``: of the process, by the squared errors of both on configurations that were left out.
    ``trust``: of a measurement against what is predicted for it, by that error and the noise.
    """

    def __init__(self, level_sd: float, seed: int) -> None:
        self.trees = ResidualTrees(ROUNDS, DEPTH, ETA, level_sd, seed, n_jobs=1)
        self.smooth: Smooth | None = None
        self.share, self.trust = 0.0, 0.8

    def fit(
        self,
        x: Array,
        points: Array,
        residual: Array,
        groups: NDArray[np.int64],
        like: Expert | None = None,
    ) -> Self:
        """n >= 0 rows; ``groups`` (n,) numbers the configurations from 0. An expert of nearly the same rows
        may say what is left out to learn: how good its halves are."""
        self.trees.fit(x, residual)
        first, count = np.unique(groups, return_index=True, return_counts=True)[1:]
        if len(first) < MIN_ROWS or not np.ptp(points, axis=0).any():
            return self
        means = np.bincount(groups, residual) / count
        self.smooth = Smooth().fit(points[first], means, self.trees.seed)
        if like is not None:
            self.share, self.trust = like.share, like.trust
            return self
        error = self.trees.out_of_fold(x, residual, points, groups, FOLDS)[0]
        by_trees = float(np.mean(error**2))
        self.share = by_trees / (by_trees + self.smooth.left_out_mse)
        least = min(by_trees, self.smooth.left_out_mse)
        self.trust = least / (least + NOISE**2)
        return self

    def predict(self, x: Array, points: Array) -> Array:
        """(n,) of rows ``x`` (n, f) that lie at ``points`` (n, d)."""
        said = self.trees.predict(x)
        if self.smooth is None:
            return said
        return (1 - self.share) * said + self.share * self.smooth.predict(points)

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path, name: str) -> dict[str, Any]:
        smooth = None if self.smooth is None else self.smooth.state()
        shares = {"share": self.share, "trust": self.trust}
        return {"trees": self.trees.save(folder, name), "smooth": smooth, **shares}

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any]) -> Self:
        expert = cls(level_sd=1.0, seed=0)
        expert.trees = ResidualTrees.restore(folder, state["trees"])
        expert.smooth = None if state["smooth"] is None else Smooth.restore(state["smooth"])
        expert.share, expert.trust = state["share"], state["trust"]
        return expert
