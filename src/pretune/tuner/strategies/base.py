"""A strategy decides which configuration to try next. It knows nothing of launchers or storage."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import polars as pl

from pretune.datasets.trial import Trial
from pretune.model.base import Prediction, Predictor


class Strategy(ABC):
    """``ask`` for rows of ``candidates``, ``tell`` what became of them.

    ``candidates`` (n rows) and ``history`` (m rows) are frames in the store's columns.
    Deterministic for a ``seed`` and the same order of tells.
    """

    def __init__(self, candidates: pl.DataFrame, history: pl.DataFrame, seed: int = 0) -> None:
        self.candidates, self.history = candidates, history
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.told: list[Trial] = []
        self.open = np.ones(len(candidates), dtype=bool)

    def ask(self, n: int = 1) -> list[int]:
        """Up to n different untried rows, the most promising first; they count as tried from now on."""
        rows: list[int] = []
        while len(rows) < n and self.open.any():
            row = self.choose()
            self.open[row] = False
            rows.append(row)
        return rows

    def tell(self, row: int, trial: Trial) -> None:
        """What became of ``row``; also takes rows that were never asked for (a resumed session)."""
        self.open[row] = False
        self.told.append(trial)

    def reopen(self, row: int) -> None:
        """``row`` was asked for, and nothing became of it."""
        self.open[row] = True

    @abstractmethod
    def choose(self) -> int:
        """One open row."""

    def predict(self) -> Prediction | None:
        """What the strategy now believes of all candidates; None when it has no model."""
        return None

    def fitted(self) -> Predictor | None:
        """The model behind the choices, fitted to all that was told; None when there is none."""
        return None
