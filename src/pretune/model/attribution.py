"""What moves the predictions of boosted trees: SHAP values of their correction, by named feature."""

from __future__ import annotations

import numpy as np
import polars as pl

from pretune.model.base import Array
from pretune.model.boosting import ResidualTrees
from pretune.model.columns import ran, rows
from pretune.model.features import Encoder
from pretune.model.surrogate import BoostedTrees

EXPECTED = "(expected)"  # what the trees say of a row of which nothing is known
EXPLAINED_ROWS = 2000


def shap_values(fitted: BoostedTrees, frame: pl.DataFrame) -> pl.DataFrame:
    """(n, named features + 1) additive parts of the trees' output, in log throughput.

    A row sums, with :data:`EXPECTED`, to what the trees add to physics and level; where physics
    cannot speak of a row, to all of its log throughput but the level. Exact for trees (Lundberg et al. 2020,
    doi 10.1038/s42256-019-0138-9). The values of the words of one column are summed.
    """
    names = _features(fitted.encoder_)
    x, known = fitted.encoder_.matrix(frame), np.isfinite(fitted.baseline_.log_throughput(frame))
    values = np.zeros((len(frame), len(names) + 1))
    for trees, of in ((fitted.trees_, known), (fitted.blind_, ~known)):
        values[of] = _contributions(trees, x[of])
    columns: dict[str, Array] = {}
    for name, value in zip([*names, EXPECTED], values.T, strict=True):
        columns[name] = columns.get(name, 0.0) + value
    return pl.DataFrame(columns)


def attributions(fitted: BoostedTrees, trials: pl.DataFrame, seed: int = 0) -> dict[str, float]:
    """Feature -> mean absolute effect on throughput, a share (0.05: by 5 %), largest first; those without
    any effect are left out. Over at most :data:`EXPLAINED_ROWS` of the trials that ran, drawn by ``seed``.
    """
    good = rows(trials, ran(trials))
    some = good.sample(min(len(good), EXPLAINED_ROWS), seed=seed) if len(good) else good
    values = shap_values(fitted, some).drop(EXPECTED)
    effects = {v.name: float(np.expm1(np.abs(v.to_numpy()).mean())) for v in values} if len(some) else {}
    found = sorted(effects.items(), key=lambda item: (-item[1], item[0]))
    return {name: effect for name, effect in found if effect > 0}


def _features(encoder: Encoder) -> list[str]:
    """For each column of the encoder's matrix, the column of the frame (or figure of physics) behind it."""
    words = [name for name, seen in encoder.one_hot_.items() for _ in seen]
    return [*encoder.numeric_, *words, *encoder.physical_]


def _contributions(trees: ResidualTrees, x: Array) -> Array:
    import xgboost

    if trees.booster_ is None or not len(x):
        return np.zeros((len(x), x.shape[1] + 1))
    return np.asarray(trees.booster_.predict(xgboost.DMatrix(x), pred_contribs=True), dtype=np.float64)
