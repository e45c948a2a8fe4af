"""Boosted trees on residuals: a level, a booster, and errors on configurations it has not seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pretune.errors import InputError
from pretune.model.base import Array

if TYPE_CHECKING:
    import xgboost

MIN_ROWS = 4  # below, a mean says more than a split
LEVEL_NOISE = 0.3  # of one residual about the level
NEIGHBOURS = 1000  # rows kept to measure distances to
NEAREST_AT_ONCE = 1024  # so that their distances stay in a core's cache
LEAF = -1  # the child of a node that has none, in XGBoost's JSON
FARTHEST = 4.0  # usual distances; no error grows without end


class ResidualTrees:
    """Learns residuals (n,): logs of measured over physical throughput.

    ``level_`` absorbs what all rows share (another definition of throughput, an efficiency that physics
    assumed); it is the median, shrunk towards 0 as far as a prior of ``level_sd`` says. The trees
    learn the rest.
    """

    def __init__(
        self, rounds: int, max_depth: int, learning_rate: float, level_sd: float, seed: int, n_jobs: int
    ) -> None:
        self.rounds, self.level_sd, self.seed = rounds, level_sd, seed
        self.params = {
            "max_depth": max_depth,
            "eta": learning_rate,
            "subsample": 0.8,
            "colsample_bytree": 0.8,
            "min_child_weight": 2,
            "max_bin": 64,
            "base_score": 0.0,
            "seed": seed,
            "nthread": n_jobs,
            "verbosity": 0,
        }

    def fit(self, x: Array, residual: Array) -> Self:
        """n >= 0 rows of f features."""
        self.features_ = x.shape[1]
        self.level_ = self._level(residual)
        self.booster_ = self._train(x, residual - self.level_)
        self.__dict__.pop("thresholds", None)
        return self

    @cached_property
    def thresholds(self) -> dict[int, NDArray[np.float32]]:
        """Feature -> where its trees split it."""
        return thresholds(self.booster_)

    def _level(self, residual: Array) -> float:
        if not len(residual):
            return 0.0
        return (
            float(np.median(residual)) * len(residual) / (len(residual) + (LEVEL_NOISE / self.level_sd) ** 2)
        )

    def _train(self, x: Array, y: Array) -> xgboost.Booster | None:
        import xgboost

        if len(y) < MIN_ROWS or not x.shape[1]:
            return None
        return xgboost.train(self.params, xgboost.DMatrix(x, y), num_boost_round=self.rounds)

    def predict(self, x: Array) -> Array:
        """(n,) level and trees."""
        return self.level_ + apply(self.booster_, x)

    def leaves(self, x: Array, trees: int) -> NDArray[np.int32]:
        """(n, at most ``trees``) the leaf that each row falls into, of the first trees."""
        import xgboost

        if self.booster_ is None or not len(x):
            return np.zeros((len(x), 0), np.int32)
        spread = (0, min(trees, self.rounds))
        leaf = self.booster_.predict(xgboost.DMatrix(x), pred_leaf=True, iteration_range=spread)
        return np.asarray(leaf.reshape(len(x), -1), dtype=np.int32)

    def out_of_fold(
        self, x: Array, residual: Array, points: Array, groups: NDArray[np.int64], folds: int
    ) -> tuple[Array, Array]:
        """(n,) each row's error by a level and trees that saw no row of its group, (n,) its distance from
        what they saw.

        NaN where there are too few groups to hold one out.
        """
        error, away = np.full((2, len(residual)), np.nan)
        count = int(groups.max()) + 1 if len(groups) else 0
        folds = min(folds, count)
        if folds < 2 or len(residual) < MIN_ROWS:
            return error, away
        fold = np.random.default_rng(self.seed).permutation(count)[groups] % folds
        for k in range(folds):
            test, train = fold == k, fold != k
            y = residual - self._level(residual[train])
            error[test] = y[test] - apply(self._train(x[train], y[train]), x[test])
            away[test] = nearest(points[train], points[test])
        return error, away

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write ``NAME.ubj``; returns the rest, for JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.booster_ is not None:
            self.booster_.save_model(folder / f"{name}.ubj")
        file = None if self.booster_ is None else f"{name}.ubj"
        return {"trees": file, "level": self.level_, "rounds": self.rounds, "features": self.features_}

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any]) -> Self:
        """Raises :class:`InputError` when the booster is missing, unreadable or of other features."""
        model = cls(state["rounds"], max_depth=0, learning_rate=0.1, level_sd=1.0, seed=0, n_jobs=1)
        model.level_, model.features_ = state["level"], state["features"]
        file = state["trees"]
        model.booster_ = None if file is None else load_booster(folder / file, state["features"])
        return model


def load_booster(path: Path, features: int) -> xgboost.Booster:
    """Raises :class:`InputError` when the file is missing, unreadable or of other features."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    try:
        booster.load_model(path)
    except (xgboost.core.XGBoostError, OSError) as error:
        raise InputError(f"{path}: is no booster ({str(error).splitlines()[0]}); fit it again") from None
    if booster.num_features() != features:
        raise InputError(f"{path}: has {booster.num_features()} features, the sheet {features}; fit it again")
    return booster


def apply(booster: xgboost.Booster | None, x: Array) -> Array:
    """(n,) the sum of the trees; 0 without any."""
    if booster is None or not len(x):
        return np.zeros(len(x))
    return np.asarray(booster.inplace_predict(x, predict_type="margin"), dtype=np.float64)


def thresholds(booster: xgboost.Booster | None) -> dict[int, NDArray[np.float32]]:
    """Feature -> the values, ascending, at which some tree splits it."""
    found: dict[int, set[float]] = {}
    model = {} if booster is None else json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    for tree in model["model"]["trees"] if model else []:
        of_split = zip(tree["split_indices"], tree["split_conditions"], tree["left_children"], strict=True)
        for feature, value, child in of_split:
            if child != LEAF:
                found.setdefault(feature, set()).add(value)
    return {feature: np.array(sorted(values), np.float32) for feature, values in found.items()}


def cells(splits: Iterable[Mapping[int, NDArray[np.float32]]], x: Array) -> list[NDArray[np.intp]]:
    """Columns (n,): rows of ``x`` (n, f) that are equal in all of them fall into the same leaf of every tree
    with these :func:`thresholds`."""
    every: dict[int, list[NDArray[np.float32]]] = {}
    for split in splits:
        for feature, values in split.items():
            every.setdefault(feature, []).append(values)
    found = []
    for feature, of_each in every.items():
        column = x[:, feature].astype(np.float32)  # as the trees compare them
        cell = np.searchsorted(np.unique(np.concatenate(of_each)), column, side="right")
        found.append(np.where(np.isnan(column), -1, cell))
    return found


def nearest(known: Array, points: Array) -> Array:
    """(n,) distance of each of n points to the nearest of those known; 0 where none is known."""
    if not len(known) or not len(points) or not known.shape[1]:
        return np.zeros(len(points))
    # in so many dimensions a tree looks at nearly all; a product of matrices looks at all, and faster
    known = known.astype(np.float32)
    square = (known**2).sum(axis=1)
    found = np.empty(len(points))
    for start in range(0, len(points), NEAREST_AT_ONCE):
        some = points[start : start + NEAREST_AT_ONCE].astype(np.float32)
        gap = (2 * some) @ known.T
        np.subtract(square, gap, out=gap)
        gap = gap.min(axis=1) + (some**2).sum(axis=1)
        found[start : start + NEAREST_AT_ONCE] = np.sqrt(np.maximum(gap, 0.0))
    return found


class Neighbourhood:
    """How far a row lies from those learned from, in units of the usual distance between those: 0 to 4."""

    def __init__(self, points: Array, groups: NDArray[np.int64]) -> None:
        keep = np.linspace(0, len(points) - 1, min(len(points), NEIGHBOURS)).astype(int)
        self.points = points[keep]
        first = np.unique(groups, return_index=True)[1][:NEIGHBOURS]
        self.spacing = 1.0
        if len(first) > 1 and points.shape[1]:
            one_each = points[first]
            gaps = cKDTree(one_each).query(one_each, k=2)[0][:, 1]
            self.spacing = max(float(np.median(gaps)), 1e-3)

    def stretch(self, away: Array) -> Array:
        """Distances in units of the usual one."""
        return np.minimum(away / self.spacing, FARTHEST)

    def __call__(self, points: Array) -> Array:
        return self.stretch(nearest(self.points, points))

    def state(self) -> dict[str, Any]:
        return {"points": self.points.tolist(), "spacing": self.spacing}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        found = cls(np.zeros((0, 0)), np.zeros(0, dtype=np.int64))
        found.points = np.array(state["points"], dtype=np.float64, ndmin=2)
        found.spacing = state["spacing"]
        return found
