"""Whether the very same configuration ran elsewhere, and how much that says."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.model.base import Array
from pretune.model.columns import configurations, looked_up, words

PRIOR_PAIRS = 20  # what the expected agreement counts among the pairs that were seen


class Outcomes:
    """Corrects a chance to run, by configuration, with what became of it on n platforms.

    A platform's outcome less its chance is what all share of it (variance r) plus its own (1 - r);
    the mean over m platforms then moves the chance by m r / (1 + (m - 1) r) of itself (Spearman 1910
    and Brown 1910). ``agreement`` r is learned from configurations that several platforms tried.
    """

    def __init__(self, expected: float) -> None:
        self.expected = expected

    def fit(self, frame: pl.DataFrame, chance: Array) -> Self:
        """n trials of any platforms, and (n,) the chance that each was given."""
        surprise = (words(frame, "status", "ok") == "ok").astype(np.float64) - chance
        platform = words(frame, "platform.name").astype(str)
        each = (
            pl.DataFrame({"key": configurations(frame), "platform": platform, "surprise": surprise})
            .group_by("key", "platform", maintain_order=True)
            .agg(pl.col("surprise").mean())
        )
        value = pl.col("surprise")
        by = each.group_by("key", maintain_order=True).agg(
            total=value.sum(), square=(value**2).sum(), count=pl.len()
        )
        self.told = {k: (s / n, n) for k, s, n in by.select("key", "total", "count").iter_rows()}
        several = by.filter(pl.col("count") > 1)
        total, square, count = (several[name].to_numpy() for name in ("total", "square", "count"))
        # products over pairs of platforms, each configuration counting as one less than its platforms
        together = float(((total**2 - square) / np.maximum(count, 1)).sum())
        alone = float((square * (count - 1) / np.maximum(count, 1)).sum())
        usual = PRIOR_PAIRS * float(np.mean(surprise**2)) if len(surprise) else 0.0
        agreement = (together + self.expected * usual) / (alone + usual) if alone + usual > 0 else 0.0
        self.agreement = float(np.clip(agreement, 0.0, 0.98))
        return self

    def correct(self, keys: pl.Series, chance: Array) -> Array:
        """(n,) the chances, moved where one of n configurations was tried elsewhere."""
        surprise = np.nan_to_num(looked_up(keys, {key: mean for key, (mean, _) in self.told.items()}))
        count = np.nan_to_num(looked_up(keys, {key: float(n) for key, (_, n) in self.told.items()}))
        weight = count * self.agreement / (1 + np.maximum(count - 1, 0) * self.agreement)
        moved: NDArray[np.float64] = np.clip(chance + weight * surprise, 0.005, 0.995)
        return np.where(count > 0, moved, chance)

    def state(self) -> dict[str, Any]:
        return {"told": self.told, "agreement": self.agreement}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        outcomes = cls(0.0)
        outcomes.told = {key: (surprise, count) for key, (surprise, count) in state["told"].items()}
        outcomes.agreement = state["agreement"]
        return outcomes
