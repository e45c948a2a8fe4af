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
        self.pending: list[int] = []  # asked for, and not told yet

    def ask(self, n: int = 1) -> list[int]:
        """Up to n different untried rows, the most promising first; they count as tried from now on."""
        rows: list[int] = []
        while len(rows) < n and self.open.any():
            row = self.choose()
            self.hold(row)
            rows.append(row)
        return rows

    def hold(self, row: int) -> None:
        """``row`` is being tried: not chosen again, and what is chosen meanwhile is to differ from it."""
        self.open[row] = False
        self.pending.append(row)

    def tell(self, row: int, trial: Trial) -> None:
        """What became of ``row``; also takes rows that were never asked for (a resumed session)."""
        self.drop(row)
        self.told.append(trial)

    def drop(self, row: int) -> None:
        """``row`` was tried and told nothing of itself: it stays closed."""
        self.open[row] = False
        self.pending = [each for each in self.pending if each != row]

    @abstractmethod
    def choose(self) -> int:
        """One open row."""

    def predict(self) -> Prediction | None:
        """What the strategy now believes of all candidates; None when it has no model."""
        return None

    def expected_gain(self) -> float | None:
        """What the most promising open row is expected to bring over the best trial, as a share of it; None
        where there is no model, or nothing ran yet."""
        return None

    def fitted(self) -> Predictor | None:
        """The model behind the choices, fitted to all that was told; None when there is none."""
        return None
