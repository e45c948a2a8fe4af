"""Hardware counters that one platform measured, as what the same configurations ask of another.

A candidate has no counters of its own. What a configuration asks of a device (instructions, transactions,
occupancy) is much the same on the next one, while how fast that is differs: what counters share,
a new device speeds up or slows down together, as it does a component of the physics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from pretune.model.base import Array
from pretune.model.boosting import ResidualTrees
from pretune.model.columns import numbers, ran, rows, words
from pretune.model.features import Encoder
from pretune.model.physics.none import NoPhysics

COMPONENTS = 3
MIN_ROWS = 20  # with counters, to learn from
ROUNDS, DEPTH, ETA = 200, 5, 0.1
SHARE = 0.2  # of log time that a component's usual spread moves where a device halves its speed


class Counters:
    """The first principal components of a platform's counters, foretold from the configuration.

    Counters enter as logs, standardised. They are those of the platform on which most trials have
    any: devices name and scale them differently.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.platform: str | None = None  # whose counters they are
        self.encoder = Encoder(NoPhysics()).fit(pl.DataFrame())
        self.trees: list[ResidualTrees] = []

    def fit(self, frame: pl.DataFrame) -> Self:
        """n >= 0 trials of any platforms; without enough counters, nothing is learned."""
        counted = _most_counted(rows(frame, ran(frame)))
        components = _components(_standardised(counted))
        self.platform = counted["platform.name"][0] if len(counted) else None
        self.encoder.fit(counted)
        x = self.encoder.matrix(counted)
        self.trees = [
            ResidualTrees(ROUNDS, DEPTH, ETA, level_sd=1.0, seed=self.seed, n_jobs=1).fit(x, component)
            for component in components.T
        ]
        return self

    def shares(self, frame: pl.DataFrame) -> Array:
        """(n, components learned) how log time moves with each, as :meth:`pretune.model.Baseline.shares`."""
        if not self.trees:
            return np.zeros((len(frame), 0))
        x = self.encoder.matrix(frame)
        return SHARE * np.column_stack([trees.predict(x) for trees in self.trees])

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path) -> dict[str, Any]:
        """Write a booster per component; returns the rest, for JSON."""
        trees = [each.save(folder, f"counters-{i}") for i, each in enumerate(self.trees)]
        return {"platform": self.platform, "encoder": self.encoder.state(), "trees": trees}

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any]) -> Self:
        counters = cls()
        counters.platform = state["platform"]
        counters.encoder = Encoder.restore(state["encoder"], NoPhysics())
        counters.trees = [ResidualTrees.restore(folder, each) for each in state["trees"]]
        return counters


def _names(frame: pl.DataFrame) -> list[str]:
    return sorted(name for name in frame.columns if name.startswith("counter."))


def _most_counted(frame: pl.DataFrame) -> pl.DataFrame:
    """The trials with counters of the platform that has most of them; none where they are few."""
    known = np.zeros(len(frame), dtype=bool)
    for name in _names(frame):
        known |= np.isfinite(numbers(frame, name))
    counted = rows(frame, known)
    platforms, trials = np.unique(words(counted, "platform.name").astype(str), return_counts=True)
    if not len(trials) or trials.max() < MIN_ROWS:
        return frame.clear()
    return counted.filter(pl.col("platform.name") == platforms[np.argmax(trials)])


def _standardised(frame: pl.DataFrame) -> Array:
    """(n, c) logs of the counters that vary and that half of the trials have; the unknown is the mean."""
    columns: list[Array] = []
    for name in _names(frame) if len(frame) else []:
        value = np.log1p(np.maximum(numbers(frame, name), 0.0))
        known = np.isfinite(value)
        if known.mean() >= 0.5 and value[known].std() > 1e-9:
            columns.append(np.nan_to_num((value - value[known].mean()) / value[known].std()))
    return np.column_stack(columns) if columns else np.zeros((len(frame), 0))


def _components(values: Array) -> Array:
    """(n, at most :data:`COMPONENTS`) of unit variance (Jolliffe 2002, Principal Component Analysis)."""
    if not values.size:
        return np.zeros((len(values), 0))
    left, size, _ = np.linalg.svd(values, full_matrices=False)
    kept = size[:COMPONENTS] > 1e-6 * size[0]
    # a singular vector's sign is arbitrary; the largest entry is made positive so that fits agree
    left = left[:, :COMPONENTS][:, kept]
    sign = np.sign(left[np.argmax(np.abs(left), axis=0), np.arange(left.shape[1])])
    return np.asarray(left * sign * np.sqrt(len(values)))
