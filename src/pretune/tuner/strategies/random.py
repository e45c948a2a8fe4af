"""Random order: what any other strategy has to beat."""

from __future__ import annotations

import numpy as np
import polars as pl

from pretune.tuner.strategies.base import Strategy


class RandomStrategy(Strategy):
    """One shuffle at the start, so that a resumed session goes on in the order it began with."""

    def __init__(self, candidates: pl.DataFrame, history: pl.DataFrame, seed: int = 0) -> None:
        super().__init__(candidates, history, seed)
        self.order = self.rng.permutation(len(candidates))

    def choose(self) -> int:
        return int(self.order[np.flatnonzero(self.open[self.order])[0]])
