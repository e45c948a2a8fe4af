"""The contract's twin: a surrogate that knows the level of a platform and guesses the rest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pretune.model.base import Prediction, Predictor
from pretune.model.columns import configurations, numbers, ran
from pretune.model.saving import read_sheet, rows_frame, verify, write_sheet


class RandomSurrogate(BaseEstimator, Predictor):  # type: ignore[misc]  # scikit-learn has no types
    """Ranks configurations at random, the same way each time for a ``seed``.

    What any method must beat, and what tests use where a surrogate is needed that has learned nothing.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, frame: pl.DataFrame, y: None = None) -> Self:
        """Keep the mean and spread of log throughput."""
        seen = np.log(numbers(frame, "tokens_per_s_per_device")[ran(frame)])
        self.level_ = float(seen.mean()) if len(seen) else 0.0
        self.spread_ = float(seen.std(ddof=1)) if len(seen) > 1 else 1.0
        self.check_rows_ = frame.head(5)
        return self

    def predict(self, frame: pl.DataFrame) -> Prediction:
        """A draw per configuration, by its hash: the same configuration always gets the same draw."""
        check_is_fitted(self)
        draws = np.array([self._draw(key) for key in configurations(frame).to_list()])
        log_mean = self.level_ + self.spread_ * (draws - 0.5)
        half = 1.645 * self.spread_ + self.spread_ / 2
        return Prediction(
            log_mean=log_mean,
            low=np.exp(log_mean - half),
            high=np.exp(log_mean + half),
            chance_to_run=np.full(len(frame), 0.9),
            out_of_domain=[None] * len(frame),
        )

    def _draw(self, key: str) -> float:
        digest = hashlib.sha256(f"{self.seed} {key}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    def save(self, folder: str | Path) -> None:
        check_is_fitted(self)
        state = {"seed": self.seed, "level": self.level_, "spread": self.spread_}
        write_sheet(self, Path(folder), state, self.check_rows_)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        sheet = read_sheet(cls.__name__, Path(folder))
        model = cls(sheet["seed"])
        model.level_, model.spread_ = sheet["level"], sheet["spread"]
        model.check_rows_ = rows_frame(sheet["check"]["rows"])
        verify(model, Path(folder), sheet)
        return model
