"""Boosted trees on residuals: one booster with its encoder, and its out-of-fold errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pretune.errors import InputError
from pretune.model.base import Array, Baseline
from pretune.model.columns import configurations
from pretune.model.features import Encoder

if TYPE_CHECKING:
    import xgboost

MIN_ROWS = 4  # below, a mean says more than a split
NEIGHBOURS = 2000  # rows kept to measure distances to


class ResidualTrees:
    """Learns ``residual`` (n,), the log of measured over physical throughput, less a level.

    ``level`` absorbs what all rows share (another definition of throughput, an efficiency that
    physics assumed), shrunk towards 0 by ``level_sd``. After :meth:`fit`, ``out_of_fold_`` (n,) holds each row's
    prediction by trees that saw no row of the same configuration.
    """

    def __init__(
        self,
        baseline: Baseline,
        level_sd: float = 0.7,
        n_estimators: int = 300,
        max_depth: int = 5,
        learning_rate: float = 0.06,
        folds: int = 5,
        seed: int = 0,
        n_jobs: int = 1,
    ) -> None:
        self.encoder = Encoder(baseline)
        self.level_sd, self.folds = level_sd, folds
        self.rounds = n_estimators
        self.params = {
            "max_depth": max_depth,
            "eta": learning_rate,
            "subsample": 0.8,
            "colsample_bytree": 0.8,
            "min_child_weight": 2,
            "base_score": 0.0,
            "seed": seed,
            "nthread": n_jobs,
            "verbosity": 0,
        }

    def fit(self, frame: pl.DataFrame, residual: Array, groups: Array | list[str] | None = None) -> Self:
        """n >= 0 rows; ``groups`` (n,) share no fold, by default the configurations."""
        self.encoder.fit(frame)
        self.level_ = self._level(residual)
        x, y = self.encoder.matrix(frame), residual - self.level_
        self.booster_ = self._train(x, y)
        points = self.encoder.points(frame)
        keys = np.unique(configurations(frame) if groups is None else groups, return_inverse=True)[1]
        self._cross(x, y, points, keys)
        keep = np.linspace(0, len(points) - 1, min(len(points), NEIGHBOURS)).astype(int)
        self.points_ = points[keep]
        self.spacing_ = _spacing(points, keys)
        return self

    def _level(self, residual: Array) -> float:
        if not len(residual):
            return 0.0
        return float(np.median(residual)) * len(residual) / (len(residual) + (0.3 / self.level_sd) ** 2)

    def _train(self, x: Array, y: Array) -> xgboost.Booster | None:
        import xgboost

        if len(y) < MIN_ROWS or not x.shape[1]:
            return None
        return xgboost.train(self.params, xgboost.DMatrix(x, y), num_boost_round=self.rounds)

    def _cross(self, x: Array, y: Array, points: Array, keys: NDArray[np.int64]) -> None:
        """Fill ``out_of_fold_`` and ``away_``, each row's distance from the rows it was predicted from."""
        self.out_of_fold_ = np.full(len(y), np.nan)
        self.away_ = np.full(len(y), np.nan)
        groups = keys.max() + 1 if len(keys) else 0
        folds = min(self.folds, groups)
        if folds < 2 or len(y) < MIN_ROWS:
            return
        order = np.random.default_rng(self.params["seed"]).permutation(groups)
        fold = order[keys] % folds
        for k in range(folds):
            test, train = fold == k, fold != k
            booster = self._train(x[train], y[train])
            self.out_of_fold_[test] = self.level_ + _apply(booster, x[test])
            self.away_[test] = _nearest(points[train], points[test])

    def predict(self, frame: pl.DataFrame) -> Array:
        """(n,) level and trees."""
        return self.level_ + _apply(self.booster_, self.encoder.matrix(frame))

    def leaves(self, frame: pl.DataFrame, trees: int) -> NDArray[np.int32]:
        """(n, at most ``trees``) the leaf that each row falls into, of trees spread over the booster."""
        import xgboost

        if self.booster_ is None or not len(frame):
            return np.zeros((len(frame), 0), np.int32)
        data = xgboost.DMatrix(self.encoder.matrix(frame))
        leaf = self.booster_.predict(data, pred_leaf=True, iteration_range=(0, min(trees, self.rounds)))
        return leaf.reshape(len(frame), -1).astype(np.int32)

    def distance(self, frame: pl.DataFrame) -> Array:
        """(n,) to the nearest row learned from, in units of the usual distance between those; 0 to 4."""
        return stretch(_nearest(self.points_, self.encoder.points(frame)), self.spacing_)

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write ``NAME.ubj``; returns the rest, for JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.booster_ is not None:
            self.booster_.save_model(folder / f"{name}.ubj")
        return {
            "trees": None if self.booster_ is None else f"{name}.ubj",
            "feature_names": self.encoder.names_,
            "encoder": self.encoder.state(),
            "level": self.level_,
            "rounds": self.rounds,
            "points": self.points_.tolist(),
            "spacing": self.spacing_,
        }

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any], baseline: Baseline) -> Self:
        """Raises :class:`InputError` when the booster is missing or has other features than the sheet."""
        model = cls(baseline, n_estimators=state["rounds"])
        model.encoder = Encoder.restore(state["encoder"], baseline)
        model.level_, model.spacing_ = state["level"], state["spacing"]
        model.points_ = np.array(state["points"], dtype=np.float64).reshape(len(state["points"]), -1)
        model.booster_ = None
        if model.encoder.names_ != state["feature_names"]:
            raise InputError(f"{folder}: its feature names are not this version's; fit it again")
        if state["trees"] is not None:
            model.booster_ = _load_booster(folder / state["trees"], len(state["feature_names"]))
        return model


def _load_booster(path: Path, features: int) -> xgboost.Booster:
    import xgboost

    booster = xgboost.Booster()
    try:
        booster.load_model(path)
    except (xgboost.core.XGBoostError, OSError) as error:
        raise InputError(f"{path}: is no booster ({str(error).splitlines()[0]}); fit it again") from None
    if booster.num_features() != features:
        raise InputError(f"{path}: has {booster.num_features()} features, the sheet {features}; fit it again")
    return booster


def _apply(booster: xgboost.Booster | None, x: Array) -> Array:
    import xgboost

    if booster is None or not len(x):
        return np.zeros(len(x))
    return booster.predict(xgboost.DMatrix(x)).astype(np.float64)


def _nearest(known: Array, points: Array) -> Array:
    known, points = np.nan_to_num(known, nan=0.5), np.nan_to_num(points, nan=0.5)
    if not len(known) or not len(points) or not known.shape[1]:
        return np.zeros(len(points))
    return np.asarray(cKDTree(known).query(points)[0])


def _spacing(points: Array, keys: NDArray[np.int64]) -> float:
    """The median distance from a configuration to the nearest other one."""
    first = np.unique(keys, return_index=True)[1][:NEIGHBOURS]
    if len(first) < 2 or not points.shape[1]:
        return 1.0
    one_each = np.nan_to_num(points[first], nan=0.5)
    return max(float(np.median(cKDTree(one_each).query(one_each, k=2)[0][:, 1])), 1e-3)


def stretch(distance: Array, spacing: float) -> Array:
    """Distances in units of ``spacing``, at most 4, since no error grows without end."""
    return np.minimum(distance / spacing, 4.0)
