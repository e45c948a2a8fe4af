"""What the trials of other platforms say: one expert per platform, one of all together, and physics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.model.base import Array, Baseline
from pretune.model.boosting import cells
from pretune.model.columns import configurations, distinct, looked_up, numbered, rows, words
from pretune.model.counters import Counters
from pretune.model.expert import Expert
from pretune.model.features import Encoder
from pretune.model.physics.setup import read_setup
from pretune.model.surrogate import prior_sd, residuals

MIN_TRIALS = 3  # of a platform, to make an expert of it
ALIKE = 1.5  # log distance between platforms at which a source's weight has fallen to 0.6
POOLED, PHYSICS = "(all sources)", "(physics)"
POOLED_SHARE, PHYSICS_SHARE = 0.45, 0.1  # of the weight, before any trial
_COMPARED = ("matmul_flops_per_s", "memory_bytes_per_s", "intra_bytes_per_s", "inter_bytes_per_s", "devices")


def platform_position(frame: pl.DataFrame) -> Array:
    """(5,) logs of a platform's compute, memory and link figures, from the first row of its trials."""
    setup = read_setup(frame.head(1))
    logs = [float(np.log(getattr(setup, name)[0])) for name in _COMPARED]
    # the slowest link that all devices share counts twice on one node, and never an assumed one
    if setup.local[0] >= setup.devices[0]:
        logs[3] = logs[2]
    elif setup.local[0] == 1:
        logs[2] = logs[3]
    return np.array(logs)


class Sources:
    """Experts on the residuals of other platforms.

    ``names`` (s,): the platforms with enough trials; where there are two or more, all pooled, which knows
    platforms by their figures; and physics alone, which says the same of every row and is what remains
    when the sources mislead. ``levels``: each platform's median residual.
    """

    def __init__(self, baseline: Baseline, seed: int = 0) -> None:
        self.baseline, self.seed = baseline, seed

    def fit(self, frame: pl.DataFrame) -> Self:
        """n >= 0 trials of platforms that are not the target."""
        self.frame, self.residual = residuals(frame, self.baseline)
        self.encoder = Encoder(self.baseline).fit(self.frame)
        self.matrix, self.points = self.encoder.matrix(self.frame), self.encoder.points(self.frame)
        self.keys = configurations(self.frame)
        self.platform = words(self.frame, "platform.name")
        self.platforms, self.counts, levels, positions = [], [], [], []
        for name in sorted(set(self.platform)):
            of = self.platform == name
            if of.sum() >= MIN_TRIALS:
                self.platforms.append(str(name))
                self.counts.append(int(of.sum()))
                levels.append(float(np.median(self.residual[of])))
                positions.append(platform_position(rows(self.frame, of)))
        self.levels, self.positions = np.array(levels), np.array(positions)
        self.experts = {name: self._expert(self.platform == name) for name in self.platforms}
        self.measured = {name: self._measured(self.platform == name) for name in self.platforms}
        self._pool()
        # where there is physics, that says what a configuration asks of a device
        self.counters = Counters(self.seed)
        if self.baseline.name == "none":
            self.counters.fit(self.frame)
        return self

    def _pool(self, like: Expert | None = None) -> None:
        # without physics nothing says why platforms differ: the sharpest of them would speak for all
        if len(self.platforms) > 1 and self.baseline.name != "none":
            self.experts[POOLED] = self._expert(np.isin(self.platform, self.platforms), like)

    def _expert(self, of: NDArray[np.bool_], like: Expert | None = None) -> Expert:
        expert = Expert(prior_sd(self.baseline), self.seed)
        groups = numbered(self.keys.filter(of))
        return expert.fit(self.matrix[of], self.points[of], self.residual[of], groups, like)

    def _measured(self, of: NDArray[np.bool_]) -> dict[str, float]:
        """Configuration -> residual, the median of its repeats."""
        table = pl.DataFrame({"key": self.keys.filter(of), "value": self.residual[of]})
        medians = table.group_by("key", maintain_order=True).agg(pl.col("value").median())
        return dict(zip(medians["key"], medians["value"], strict=True))

    def without(self, name: str) -> Self:
        """The others, as if ``name`` had never been measured; to play it as a target."""
        others = type(self)(self.baseline, self.seed)
        kept = [i for i, platform in enumerate(self.platforms) if platform != name]
        others.__dict__ |= {
            "encoder": self.encoder,
            "frame": self.frame,
            "matrix": self.matrix,
            "points": self.points,
            "keys": self.keys,
            "platform": self.platform,
            "residual": self.residual,
            "platforms": [self.platforms[i] for i in kept],
            "counts": [self.counts[i] for i in kept],
            "levels": self.levels[kept],
            "positions": self.positions[kept],
            "counters": Counters() if self.counters.platform == name else self.counters,
        }
        others.experts = {other: self.experts[other] for other in others.platforms}
        others.measured = {other: self.measured[other] for other in others.platforms}
        others._pool(self.experts.get(POOLED))
        return others

    @property
    def names(self) -> list[str]:
        return [*self.experts, PHYSICS]

    def predict(self, frame: pl.DataFrame, x: Array, keys: pl.Series) -> Array:
        """(n, s) what each expert says; where a source measured the very configuration, mostly that.

        ``x`` (n, f): the frame in the sources' encoding; ``keys`` (n,): its :func:`configurations`.
        """
        points = self.encoder.points(frame)
        first, row = self._alike(x, points)
        level = np.full(len(first), np.median(self.levels) if self.platforms else 0.0)
        x, points = x[first], points[first]
        by_experts = [expert.predict(x, points) for expert in self.experts.values()]
        said = np.column_stack([*by_experts, level])[row]
        if not self.platforms:
            return said
        trust = np.array([self.experts[name].trust for name in self.platforms])
        found = np.column_stack([looked_up(keys, self.measured[name]) for name in self.platforms])
        surprise = np.nan_to_num(trust * (found - said[:, : len(self.platforms)]))
        said[:, : len(self.platforms)] += surprise
        if POOLED in self.experts:
            # what surprised where it was measured will surprise again
            said[:, len(self.platforms)] += surprise.sum(axis=1) / np.maximum(
                np.isfinite(found).sum(axis=1), 1
            )
        return said

    def _alike(self, x: Array, points: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """:func:`distinct` of n rows, as far as any expert looks: candidates of one search differ much in
        knobs that no source ever moved, and more finely than trees split."""
        experts = self.experts.values()
        smooth = [expert.smooth for expert in experts if expert.smooth is not None]
        moved = np.any([np.isfinite(each.lengths) for each in smooth], axis=0) if smooth else []
        return distinct(
            [*cells([expert.trees.thresholds for expert in experts], x), *points[:, moved].T], len(x)
        )

    def weights(self, position: Array | None) -> Array:
        """(s,) before any trial: by likeness of platforms and number of trials. They add up to 1."""
        if not self.platforms:
            return np.ones(1)
        counts = np.array(self.counts)
        weight = counts / (counts + 10.0)
        if position is not None and self.baseline.name != "none":
            gap = ((self.positions - position) ** 2).sum(axis=1)
            weight = weight * np.maximum(np.exp(-gap / (2 * ALIKE**2)), 0.02)
        pooled = [POOLED_SHARE] if POOLED in self.experts else []
        share = 1 - PHYSICS_SHARE - sum(pooled)
        return np.array([*(share * weight / weight.sum()), *pooled, PHYSICS_SHARE])

    def spread(self) -> float:
        """Standard deviation of the residuals of a platform's configurations; of several, the median."""
        spreads = [np.std(list(table.values())) for table in self.measured.values()]
        return float(np.median(spreads)) if spreads else prior_sd(self.baseline)

    def level_sd(self, weight: Array) -> float:
        """How far a new platform's level lies from what the experts expect, by how theirs differ."""
        prior = prior_sd(self.baseline)
        if not self.platforms:
            return prior
        weight = weight[: len(self.platforms)] / weight[: len(self.platforms)].sum()
        spread = weight @ (self.levels - weight @ self.levels) ** 2
        # one pseudo-platform a prior away keeps a single source from claiming to be all there is
        count = len(self.levels)
        return float(np.sqrt((count * spread + prior**2) / (count + 1)))

    def shares(self, frame: pl.DataFrame) -> Array:
        """(n, c) how log time moves with what configurations ask of a device: of physics, or by counters."""
        return np.hstack([self.baseline.shares(frame), self.counters.shares(frame)])

    def leaves(self, x: Array, trees: int) -> NDArray[np.int32]:
        """(n, at most ``trees``) leaves that rows fall into: of all sources together, else of each."""
        asked = [self.experts[POOLED]] if POOLED in self.experts else list(self.experts.values())
        parts = [expert.trees.leaves(x, max(trees // len(asked), 1)) for expert in asked if trees]
        return np.hstack(parts) if parts else np.zeros((len(x), 0), np.int32)

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path) -> dict[str, Any]:
        return {
            "names": list(self.experts),
            "platforms": self.platforms,
            "counts": self.counts,
            "levels": self.levels.tolist(),
            "positions": self.positions.tolist(),
            "measured": self.measured,
            "encoder": self.encoder.state(),
            "counters": self.counters.save(folder),
            "experts": [e.save(folder, f"expert-{i}") for i, e in enumerate(self.experts.values())],
        }

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any], baseline: Baseline, seed: int) -> Self:
        sources = cls(baseline, seed)
        sources.platforms, sources.counts = state["platforms"], state["counts"]
        sources.levels = np.array(state["levels"], dtype=np.float64)
        sources.positions = np.array(state["positions"], dtype=np.float64)
        sources.measured = state["measured"]
        sources.encoder = Encoder.restore(state["encoder"], baseline)
        sources.counters = Counters.restore(folder, state["counters"])
        restored = [Expert.restore(folder, each) for each in state["experts"]]
        sources.experts = dict(zip(state["names"], restored, strict=True))
        return sources
