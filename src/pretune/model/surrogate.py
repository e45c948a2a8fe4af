"""The surrogate of a platform: physics, boosted trees on what physics misses, and an honest interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from scipy.stats import norm
from sklearn.base import BaseEstimator

from pretune.model.base import INTERVAL, Array, Baseline, Prediction, Surrogate
from pretune.model.boosting import ResidualTrees, stretch
from pretune.model.columns import numbers, ran, words
from pretune.model.feasibility import Feasibility
from pretune.model.physics import BASELINES, TransformerPhysics
from pretune.model.saving import read_sheet, verify, write_sheet

PRIOR_SD = 0.6  # of log throughput about the physics, before any trial
UNKNOWN_SD = 5.0  # ... where there is no physics
PRIOR_ROWS = 5  # how many trials the prior is worth when the interval is set


class BoostedTrees(BaseEstimator, Surrogate):
    """XGBoost on log(measured / physical) over the trials of one platform, or of several alike.

    The 90 % interval is cross-conformal (Barber et al. 2021, arXiv:1905.02928): the errors of
    out-of-fold predictions, folds grouped by configuration, relative to the distance from
    the rows learned from; pooled with a few draws of the prior, so that it is wide, not
    absent, where trials are few.
    """

    def __init__(
        self,
        baseline: Baseline | None = None,
        n_estimators: int = 300,
        max_depth: int = 5,
        learning_rate: float = 0.06,
        folds: int = 5,
        seed: int = 0,
        n_jobs: int = 1,
    ) -> None:
        self.baseline = baseline
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.folds = folds
        self.seed = seed
        self.n_jobs = n_jobs

    def fit(self, frame: pl.DataFrame, y: None = None) -> Self:  # noqa: ARG002  (scikit-learn's signature)
        """Learn from n >= 0 trials in the store's columns, failed ones included."""
        self.baseline_ = TransformerPhysics() if self.baseline is None else self.baseline
        good = frame.filter(pl.Series(ran(frame), dtype=pl.Boolean))
        residual = residuals(good, self.baseline_)
        good = good.filter(pl.Series(np.isfinite(residual), dtype=pl.Boolean))
        residual = residual[np.isfinite(residual)]
        self.prior_sd_ = prior_sd(self.baseline_)
        self.trees_ = ResidualTrees(
            self.baseline_,
            level_sd=self.prior_sd_,
            n_estimators=self.n_estimators,
            max_depth=self.max_depth,
            learning_rate=self.learning_rate,
            folds=self.folds,
            seed=self.seed,
            n_jobs=self.n_jobs,
        ).fit(good, residual)
        self.half_width_ = self._half_width(residual)
        self.feasibility_ = Feasibility().fit(memory_ratio(frame, self.baseline_), words(frame, "status", "ok"))
        self.n_trials_ = len(frame)
        self.check_rows_ = frame.head(5)
        return self

    def _half_width(self, residual: Array) -> float:
        trees = self.trees_
        score = np.abs(residual - trees.out_of_fold_) / (1 + stretch(trees.away_, trees.spacing_))
        score = score[np.isfinite(score)]
        prior = self.prior_sd_ * np.abs(norm.ppf((np.arange(PRIOR_ROWS) + 0.5) / PRIOR_ROWS / 2))
        return conformal_quantile(np.concatenate([score, prior]))

    def predict(self, frame: pl.DataFrame) -> Prediction:
        """Physics times the learned residual. Reads only the columns known before a trial."""
        base = self.baseline_.log_throughput(frame)
        log_mean = np.nan_to_num(base, nan=0.0) + self.trees_.predict(frame)
        half = self.half_width_ * (1 + self.trees_.distance(frame))
        half = np.where(np.isfinite(base), half, half + UNKNOWN_SD)
        return Prediction(
            log_mean=log_mean,
            low=np.exp(log_mean - half),
            high=np.exp(log_mean + half),
            chance_to_run=self.feasibility_.predict(memory_ratio(frame, self.baseline_)),
            out_of_domain=self.trees_.encoder.strange(frame),
            provenance={"trials": float(self.n_trials_)},
        )

    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        state: dict[str, Any] = {
            "params": {k: v for k, v in self.get_params(deep=False).items() if k != "baseline"},
            "baseline": self.baseline_.name,
            "trees": self.trees_.save(folder, "trees"),
            "half_width": self.half_width_,
            "feasibility": self.feasibility_.state(),
            "n_trials": self.n_trials_,
        }
        write_sheet(self, folder, state, self.check_rows_)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        folder = Path(folder)
        sheet = read_sheet(cls.__name__, folder)
        baseline = BASELINES[sheet["baseline"]]()
        model = cls(baseline=baseline, **sheet["params"])
        model.baseline_ = baseline
        model.prior_sd_ = prior_sd(baseline)
        model.trees_ = ResidualTrees.restore(folder, sheet["trees"], baseline)
        model.half_width_, model.n_trials_ = sheet["half_width"], sheet["n_trials"]
        model.feasibility_ = Feasibility.restore(sheet["feasibility"])
        verify(model, folder, sheet)
        return model


def residuals(frame: pl.DataFrame, baseline: Baseline) -> Array:
    """(n,) log of measured over physical throughput; NaN where physics says nothing."""
    return np.log(numbers(frame, "tokens_per_s_per_device")) - baseline.log_throughput(frame)


def memory_ratio(frame: pl.DataFrame, baseline: Baseline) -> Array:
    """(n,) log of the predicted peak memory over the device's; NaN where either is unknown."""
    capacity = numbers(frame, "accelerator.memory_bytes")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(baseline.memory_bytes(frame)) - np.log(capacity)


def prior_sd(baseline: Baseline) -> float:
    """How far log throughput lies from the baseline before any trial."""
    return UNKNOWN_SD if baseline.name == "none" else PRIOR_SD


def conformal_quantile(scores: Array) -> float:
    """The quantile that covers :data:`INTERVAL` of exchangeable new scores: ceil((n + 1) a) smallest."""
    rank = int(np.ceil((len(scores) + 1) * INTERVAL))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])
