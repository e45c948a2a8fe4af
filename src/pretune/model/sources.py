"""What the trials of other platforms say: one expert per platform, and one of all together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from pretune.model.base import Array, Baseline
from pretune.model.boosting import ResidualTrees
from pretune.model.columns import configurations, ran, words
from pretune.model.physics.setup import read_setup
from pretune.model.surrogate import prior_sd, residuals

MIN_TRIALS = 3  # of a platform, to make an expert of it
ALIKE = 1.5  # log distance between platforms at which a source's weight has fallen to 0.6
TRUST_MEASURED = 0.8  # of a source's own measurement against its smoothed prediction
POOLED = "(all)"
_COMPARED = ("matmul_flops_per_s", "memory_bytes_per_s", "intra_bytes_per_s", "inter_bytes_per_s", "devices")


def platform_position(frame: pl.DataFrame) -> Array:
    """(5,) logs of a platform's compute, memory and link figures, from the first row of its trials."""
    setup = read_setup(frame.head(1))
    logs = [np.log(getattr(setup, name)[0]) for name in _COMPARED]
    if setup.local[0] >= setup.devices[0]:  # on one node the link between nodes is none
        logs[3] = logs[2]
    return np.array(logs)


class Sources:
    """Experts on the residual of each platform, less its level, so that they add up on any target.

    ``names`` (s,): platforms with enough trials, then, where there are two or more, all pooled.
    ``levels`` (s - 1 or s,): each platform's median residual.
    """

    def __init__(self, baseline: Baseline, seed: int = 0) -> None:
        self.baseline, self.seed = baseline, seed

    def fit(self, frame: pl.DataFrame) -> Self:
        """n >= 0 trials of platforms that are not the target."""
        good = frame.filter(pl.Series(ran(frame), dtype=pl.Boolean))
        residual = residuals(good, self.baseline)
        known = np.isfinite(residual)
        self.frame, residual = good.filter(pl.Series(known, dtype=pl.Boolean)), residual[known]
        self.platform = words(self.frame, "platform.name")
        names, counts = np.unique(self.platform, return_counts=True)
        self.platforms = [str(n) for n, c in zip(names, counts, strict=True) if c >= MIN_TRIALS]
        self.counts = [int(c) for c in counts if c >= MIN_TRIALS]
        rows = {name: self.platform == name for name in self.platforms}
        self.levels = np.array([np.median(residual[rows[name]]) for name in self.platforms])
        self.positions = np.array([platform_position(self._of(rows[name])) for name in self.platforms])
        self.centred = residual.copy()
        for name, level in zip(self.platforms, self.levels, strict=True):
            self.centred[rows[name]] -= level
        self.experts = {name: self._expert(rows[name]) for name in self.platforms}
        self.measured = {name: self._measured(rows[name]) for name in self.platforms}
        if len(self.platforms) > 1:
            self.experts[POOLED] = self._expert(np.isin(self.platform, self.platforms))
        return self

    def _of(self, rows: Array) -> pl.DataFrame:
        return self.frame.filter(pl.Series(rows, dtype=pl.Boolean))

    def _expert(self, rows: Array) -> ResidualTrees:
        trees = ResidualTrees(
            self.baseline, n_estimators=120, max_depth=4, learning_rate=0.1, folds=0, seed=self.seed
        )
        return trees.fit(self._of(rows), self.centred[rows])

    def _measured(self, rows: Array) -> dict[str, float]:
        table = pl.DataFrame({"key": configurations(self._of(rows)), "value": self.centred[rows]})
        means = table.group_by("key").agg(pl.col("value").median())
        return dict(zip(means["key"], means["value"], strict=True))

    @property
    def names(self) -> list[str]:
        return list(self.experts)

    def without(self, name: str) -> Sources:
        """The others, as if ``name`` had never been measured; to play it as a target."""
        rows = np.isin(self.platform, [p for p in self.platforms if p != name])
        return Sources(self.baseline, self.seed).fit(self._of(rows))

    def predict(self, frame: pl.DataFrame) -> Array:
        """(n, s) what each expert says; where it measured the very configuration, mostly that."""
        if not self.experts:
            return np.zeros((len(frame), 0))
        said = np.column_stack([expert.predict(frame) for expert in self.experts.values()])
        keys = configurations(frame)
        found = np.full((len(frame), len(self.platforms)), np.nan)
        for s, name in enumerate(self.platforms):
            table = self.measured[name]
            found[:, s] = [table.get(key, np.nan) for key in keys]
        seen = np.isfinite(found)
        if said.shape[1] > found.shape[1]:
            count = seen.sum(axis=1)
            pooled = np.where(seen, found, 0.0).sum(axis=1) / np.maximum(count, 1)
            found = np.column_stack([found, np.where(count > 0, pooled, np.nan)])
        return np.where(np.isfinite(found), TRUST_MEASURED * found + (1 - TRUST_MEASURED) * said, said)

    def weights(self, position: Array | None) -> Array:
        """(s,) by likeness of platforms and number of trials; the pooled expert has half of it all."""
        if not self.platforms:
            return np.zeros(0)
        weight = np.array(self.counts) / (np.array(self.counts) + 10.0)
        if position is not None and self.baseline.name != "none":
            gap = ((self.positions - position) ** 2).sum(axis=1)
            weight = weight * np.maximum(np.exp(-gap / (2 * ALIKE**2)), 0.02)
        weight = weight / weight.sum()
        return np.append(weight, 1.0) / 2 if len(self.experts) > len(weight) else weight

    def level(self, weight: Array) -> tuple[float, float]:
        """Mean and standard deviation of a new platform's level, by those of the sources."""
        prior = prior_sd(self.baseline)
        if not self.platforms:
            return 0.0, prior
        weight = weight[: len(self.platforms)] / weight[: len(self.platforms)].sum()
        mean = float(weight @ self.levels)
        # one pseudo-platform a prior away keeps a single source from claiming to be all there is
        spread = (len(self.levels) * (weight @ (self.levels - mean) ** 2) + prior**2) / (len(self.levels) + 1)
        return mean, float(np.sqrt(spread))

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path) -> dict[str, Any]:
        experts = [e.save(folder, f"expert-{i}") for i, e in enumerate(self.experts.values())]
        return {
            "names": self.names,
            "platforms": self.platforms,
            "counts": self.counts,
            "levels": self.levels.tolist(),
            "positions": self.positions.tolist(),
            "measured": self.measured,
            "experts": experts,
        }

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any], baseline: Baseline, seed: int) -> Self:
        sources = cls(baseline, seed)
        sources.platforms, sources.counts = state["platforms"], state["counts"]
        sources.levels = np.array(state["levels"], dtype=np.float64)
        sources.positions = np.array(state["positions"], dtype=np.float64)
        sources.measured = state["measured"]
        restored = [ResidualTrees.restore(folder, each, baseline) for each in state["experts"]]
        sources.experts = dict(zip(state["names"], restored, strict=True))
        return sources
