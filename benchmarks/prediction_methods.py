"""The methods that are compared: ours, and what takes its place without our work.

A method is made anew for each row of the results, and called with one split after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import xgboost
from prediction_tasks import Split, keys

from pretune.model import NoPhysics, Surrogate, TransformerPhysics
from pretune.model.base import Array, Prediction
from pretune.model.columns import numbered, numbers, ran, rows
from pretune.model.features import Encoder
from pretune.model.surrogate import conformal_quantile

Method = Callable[[Split], Prediction]
FOLDS = 5
TREES = {"max_depth": 5, "eta": 0.06, "subsample": 0.8, "colsample_bytree": 0.8, "min_child_weight": 2}
ROUNDS = 300


def ours() -> Method:
    """pretune: nothing tells it what is the target."""
    surrogate = Surrogate()  # keeps what it learned of sources from one draw to the next

    def predict(split: Split) -> Prediction:
        return surrogate.fit(split.known).predict(split.scored)

    return predict


def physics_alone() -> Method:
    """The baseline and one factor, of the target where it has trials, else of the sources."""
    physics = TransformerPhysics()

    def predict(split: Split) -> Prediction:
        known = split.own if len(split.own) else split.sources
        known = rows(known, ran(known))
        measured, said = log_throughput(known), physics.log_throughput(known)
        factor = float(np.nanmedian(measured - said)) if np.isfinite(said).any() else 0.0
        found = physics.log_throughput(split.scored) + factor
        found = np.where(np.isfinite(found), found, np.median(measured))
        every = rows(split.known, ran(split.known))
        error = np.abs(log_throughput(every) - physics.log_throughput(every) - factor)
        return banded(found, conformal_quantile(error[np.isfinite(error)]))

    return predict


def raw_xgboost() -> Method:
    """The same trees on log throughput, without physics; a conformal band of the grouped folds' errors."""

    def predict(split: Split) -> Prediction:
        known = rows(split.known, ran(split.known))
        encoder = Encoder(NoPhysics()).fit(known)
        x, y = encoder.matrix(known), log_throughput(known)
        groups = numbered(keys(known, split.group))
        fold = np.random.default_rng(0).permutation(int(groups.max()) + 1)[groups] % FOLDS
        error = np.concatenate(
            [np.abs(y[fold == k] - trees(x[fold != k], y[fold != k], x[fold == k])) for k in range(FOLDS)]
        )
        return banded(trees(x, y, encoder.matrix(split.scored)), conformal_quantile(error))

    return predict


METHODS: dict[str, Callable[[], Method]] = {
    "pretune": ours,
    "physics alone": physics_alone,
    "raw xgboost": raw_xgboost,
}


def log_throughput(frame: pl.DataFrame) -> Array:
    return np.log(numbers(frame, "tokens_per_s_per_device"))


def trees(x: Array, y: Array, to: Array) -> Array:
    if not len(to):
        return np.zeros(0)
    level = float(y.mean())
    booster = xgboost.train(TREES | {"base_score": 0.0, "nthread": 1}, xgboost.DMatrix(x, y - level), ROUNDS)
    return level + np.asarray(booster.predict(xgboost.DMatrix(to)), dtype=np.float64)


def banded(log_mean: Array, half: float) -> Prediction:
    return Prediction(
        log_mean, np.exp(log_mean - half), np.exp(log_mean + half), np.full(len(log_mean), np.nan)
    )
