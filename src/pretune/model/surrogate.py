"""The surrogate of a platform: physics, boosted trees on what physics misses, and an honest interval."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pretune.model.base import INTERVAL, Array, Baseline, Prediction, Predictor
from pretune.model.boosting import MIN_ROWS, Neighbourhood, ResidualTrees, nearest
from pretune.model.columns import (
    MODEL,
    WIDTH,
    configurations,
    keys_of,
    numbered,
    numbers,
    ran,
    rows,
    text,
    words,
)
from pretune.model.feasibility import Feasibility
from pretune.model.features import Encoder
from pretune.model.need import MemoryNeed
from pretune.model.physics import BASELINES, NoPhysics, TransformerPhysics
from pretune.model.physics.reading import read_once
from pretune.model.saving import read_sheet, rows_frame, verify, write_sheet

PRIOR_SD = 0.6  # of log throughput about the physics, before any trial
UNKNOWN_SD = 5.0  # ... where there is no physics
AT_ONCE = 32_768  # rows predicted by one thread in one go
HELD_OUT_ROWS = 20_000  # of which errors are measured; more say nothing new
UNTRIED = 0.5  # a correction's weight before anything was held out, in squares of log throughput
KEY_ROWS = 5.0  # what all rows of one key are worth at most, when the trees are judged
PRIOR_ROWS = 5  # how many trials the prior is worth when the interval is set


class BoostedTrees(BaseEstimator, Predictor):  # type: ignore[misc]  # scikit-learn has no types
    """XGBoost on log(measured / physical) over the trials of one platform, or of several alike.

    The physics is first calibrated on the trials. What is new (a model, a platform that no trial is of) is
    predicted with the share of the trees' correction that proved right on models and platforms
    held out; what is known, with all of it. The 90 % interval reaches as far as the conformal
    quantile of held-out errors: of whole models or platforms where the row is of a new one, else of
    configurations, relative to the distance from the rows learned from. Errors are pooled with a few draws of
    the prior, so that it is wide, not absent, where trials are few. It is centred on the fit of all
    rows: the cross-validated jackknife of Barber et al. 2021 (arXiv:1905.02928), not their
    jackknife+ with its bound.
    """

    def __init__(
        self,
        baseline: Baseline | None = None,
        n_estimators: int = 300,
        max_depth: int = 5,
        learning_rate: float = 0.06,
        folds: int = 5,
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.baseline = baseline
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.folds = folds
        self.seed = seed
        self.n_jobs = n_jobs

    @read_once()
    def fit(self, frame: pl.DataFrame, y: None = None) -> Self:
        """Learn from n >= 0 trials in the store's columns, failed ones included; ``y`` is not used."""
        baseline = TransformerPhysics() if self.baseline is None else self.baseline
        self.baseline_ = baseline.calibrated(frame)
        self.encoder_ = Encoder(self.baseline_).fit(frame)
        good, residual = residuals(frame, self.baseline_)
        x, points = self.encoder_.matrix(good), self.encoder_.points(good)
        self.trees_ = self._trees().fit(x, residual)
        every = rows(frame, ran(frame))
        self.known_ = {kind: keys.unique().sort().to_list() for kind, keys in kinds_of(every).items()}
        self._learn_errors(good, x, points, baseline)
        self._learn_blind(frame)
        matrix = self.encoder_.matrix(frame)
        self.need_ = MemoryNeed(self.baseline_, self.seed).fit(frame, matrix)
        self.feasibility_ = Feasibility(self.need_.sd_, self.seed, self.n_jobs or 1).fit(
            self.need_.over_capacity(frame, matrix),
            words(frame, "status", "ok"),
            self.encoder_.stated(matrix),
        )
        self.n_trials_ = len(frame)
        self.check_rows_ = frame.head(5)
        return self

    def _trees(self) -> ResidualTrees:
        return ResidualTrees(
            self.n_estimators,
            self.max_depth,
            self.learning_rate,
            level_sd=prior_sd(self.baseline_),
            seed=self.seed,
            n_jobs=self.n_jobs or 1,
        )

    def _learn_errors(self, good: pl.DataFrame, x: Array, points: Array, baseline: Baseline) -> None:
        """How far predictions are off, by what of a row is new."""
        groups = numbered(configurations(good))
        self.near_ = Neighbourhood(points, groups)
        some = np.random.default_rng(self.seed).permutation(len(good))[:HELD_OUT_ROWS]
        some_groups = np.unique(groups[some], return_inverse=True)[1]
        level, trees, away = self._held_out(good[some], x[some], points[some], some_groups, baseline)
        self.half_width_ = half_width(np.abs(level - trees) / (1 + self.near_.stretch(away)), self.baseline_)
        self.trust_, self.far_, self.level_sds_ = {}, {}, {}
        # kind -> rows (of those that ran), and their errors (n,) where their whole key was held out
        self.held_out_: dict[str, tuple[NDArray[np.int64], Array]] = {}
        done: dict[bytes, tuple[Array, Array, Array]] = {}  # kinds often part the rows alike
        for kind, keys in kinds_of(good).items():
            groups = numbered(keys[some].to_list())
            if groups.tobytes() not in done:
                done[groups.tobytes()] = self._held_out(good[some], x[some], points[some], groups, baseline)
            level, trees, _ = done[groups.tobytes()]
            self.trust_[kind] = trusted(level, trees, groups)
            error = level - self.trust_[kind] * trees
            # as many levels were held out as there are keys, however many the rows
            self.level_sds_[kind] = level_sd(error, keys[some].to_list(), prior_sd(self.baseline_) / 2)
            least = norm_reach() * self.level_sds_[kind]
            self.far_[kind] = max(half_width(np.abs(error), self.baseline_), least)
            self.held_out_[kind] = some, error

    def _learn_blind(self, frame: pl.DataFrame) -> None:
        """Trees on log throughput itself, for the rows that physics cannot speak of."""
        good = rows(frame, ran(frame))
        log_rate = np.log(numbers(good, "tokens_per_s_per_device"))
        level = float(np.median(log_rate)) if len(good) else 0.0
        if np.isfinite(self.baseline_.log_throughput(good)).all():
            good, log_rate = good.clear(), log_rate[:0]  # a level is enough where no row was ever such
        x = self.encoder_.matrix(good)
        self.blind_ = self._trees().fit(x, log_rate - level)
        self.blind_.level_ += level
        error, _ = self.blind_.out_of_fold(
            x,
            log_rate - level,
            np.zeros((len(good), 0)),
            numbered(configurations(good)),
            self.folds,
        )
        self.blind_half_width_ = half_width(np.abs(error), NoPhysics())

    def _held_out(
        self,
        good: pl.DataFrame,
        x: Array,
        points: Array,
        groups: NDArray[np.int64],
        baseline: Baseline,
    ) -> tuple[Array, Array, Array]:
        """(n,) each row's log throughput over physics and level, (n,) the correction of trees, (n,) its
        distance from the nearest row, all by fits that saw no row of its group.

        NaN where there are too few groups to hold one out.
        """
        over, trees, away = np.full((3, len(good)), np.nan)
        count = int(groups.max()) + 1 if len(groups) else 0
        folds = min(self.folds, count)
        if folds < 2 or len(good) < MIN_ROWS:
            return over, trees, away
        fold = np.random.default_rng(self.seed).permutation(count)[groups] % folds
        measured = np.log(numbers(good, "tokens_per_s_per_device"))
        for k in range(folds):
            test, train = fold == k, fold != k
            residual = measured - baseline.calibrated(rows(good, train)).log_throughput(good)
            fitted = self._trees().fit(x[train], residual[train])
            trees[test] = fitted.predict(x[test]) - fitted.level_
            over[test] = residual[test] - fitted.level_
            away[test] = nearest(points[train], points[test])
        return over, trees, away

    def predict(self, frame: pl.DataFrame) -> Prediction:
        """Physics times the learned residual. Reads only the columns known before a trial."""
        check_is_fitted(self)
        return in_slices(self._predict, frame, self.n_jobs)

    @read_once()
    def _predict(self, frame: pl.DataFrame) -> Prediction:
        base, x = self.baseline_.log_throughput(frame), self.encoder_.matrix(frame)
        near = self.half_width_ * (1 + self.near_(self.encoder_.points(frame)))
        # distance cannot make it less certain than knowing nothing
        half = np.minimum(near, max(self.half_width_, norm_reach() * prior_sd(self.baseline_)))
        trust = np.ones(len(frame))
        for kind, keys in kinds_of(frame).items():
            new = (~keys.is_in(self.known_[kind])).to_numpy()
            trust = np.where(new, np.minimum(trust, self.trust_[kind]), trust)
            half = np.where(new, np.maximum(half, self.far_[kind]), half)
        correction = self.trees_.predict(x) - self.trees_.level_
        log_mean = base + self.trees_.level_ + trust * correction
        blind = ~np.isfinite(base)
        if blind.any():
            log_mean[blind] = self.blind_.predict(x[blind])
            half[blind] = self.blind_half_width_
        need = self.need_.over_capacity(frame, x)
        chance = self.feasibility_.predict(need, self.encoder_.stated(x))
        return Prediction(
            log_mean=log_mean,
            low=np.exp(log_mean - half),
            high=np.exp(log_mean + half),
            chance_to_run=chance,
            out_of_domain=self.encoder_.strange(frame),
            provenance={"trials": float(self.n_trials_)},
        )

    def save(self, folder: str | Path) -> None:
        check_is_fitted(self)
        folder = Path(folder)
        state: dict[str, Any] = {
            "params": {k: v for k, v in self.get_params(deep=False).items() if k != "baseline"},
            "baseline": baseline_state(self.baseline_),
            "encoder": self.encoder_.state(),
            "trees": self.trees_.save(folder, "trees"),
            "blind": self.blind_.save(folder, "blind"),
            "blind_half_width": self.blind_half_width_,
            "near": self.near_.state(),
            "half_width": self.half_width_,
            "known": self.known_,
            "trust": self.trust_,
            "far": self.far_,
            "level_sds": self.level_sds_,
            "need": self.need_.save(folder),
            "feasibility": self.feasibility_.save(folder),
            "n_trials": self.n_trials_,
        }
        write_sheet(self, folder, state, self.check_rows_)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        folder = Path(folder)
        sheet = read_sheet(cls.__name__, folder)
        baseline = restored_baseline(sheet["baseline"])
        model = cls(baseline=baseline, **sheet["params"])
        model.baseline_ = baseline
        model.encoder_ = Encoder.restore(sheet["encoder"], baseline)
        model.trees_ = ResidualTrees.restore(folder, sheet["trees"])
        model.blind_ = ResidualTrees.restore(folder, sheet["blind"])
        model.blind_half_width_ = sheet["blind_half_width"]
        model.near_ = Neighbourhood.restore(sheet["near"])
        model.half_width_, model.n_trials_ = sheet["half_width"], sheet["n_trials"]
        model.known_, model.trust_ = sheet["known"], sheet["trust"]
        model.far_, model.level_sds_ = sheet["far"], sheet["level_sds"]
        model.need_ = MemoryNeed.restore(folder, sheet["need"], baseline)
        model.feasibility_ = Feasibility.restore(folder, sheet["feasibility"])
        model.check_rows_ = rows_frame(sheet["check"]["rows"])
        verify(model, folder, sheet)
        return model


def trusted(level: Array, trees: Array, groups: NDArray[np.int64]) -> float:
    """The share, 0 to 1, of the ``trees``' correction (n,) that proved right, by what is over physics and
    ``level`` (n,), both held out by ``groups`` (n,): errors of one are alike, however many its rows."""
    weight = np.minimum(1.0, KEY_ROWS / np.bincount(groups)[groups])
    known = np.isfinite(level)
    right = (weight * level)[known] @ trees[known] + UNTRIED
    return float(np.clip(right / ((weight * trees)[known] @ trees[known] + 2 * UNTRIED), 0.0, 1.0))


def level_sd(error: Array, keys: Sequence[str], prior: float) -> float:
    """How far levels of ``keys`` differ, by held-out errors (n,) of whole keys; ``prior`` counts as one."""
    known = np.isfinite(error)
    names = np.array(keys, dtype=object)[known]
    levels = np.array([np.median(error[known][names == name]) for name in sorted(set(names))])
    return float(np.sqrt((levels @ levels + prior**2) / (len(levels) + 1)))


def kinds_of(frame: pl.DataFrame) -> dict[str, pl.Series]:
    """What a row can be new in, and its keys (n,), equal where rows are not new to each other."""
    shape, platform = keys_of(frame, MODEL), text(frame, "platform.name")
    # models of one shape are one; of those whose shape is unknown there is but the name
    unknown = pl.Series(np.isnan(numbers(frame, "model.hidden_size")), dtype=pl.Boolean)
    model = (shape + text(frame, "model.name")).zip_with(unknown, shape)
    both = model + " on " + platform
    return {
        "model": model,
        "platform": platform,
        "model on platform": both,
        "accelerator": text(frame, "accelerator.name"),
        "width": keys_of(frame, WIDTH),
    }


def in_slices(
    predict: Callable[[pl.DataFrame], Prediction], frame: pl.DataFrame, n_jobs: int | None
) -> Prediction:
    """What ``predict`` says of a frame, however long, in bounded memory; ``n_jobs`` threads, None: all."""
    if len(frame) <= AT_ONCE:
        return predict(frame)
    with ThreadPoolExecutor(n_jobs or os.cpu_count()) as threads:
        return joined(list(threads.map(predict, frame.iter_slices(AT_ONCE))))


def joined(parts: list[Prediction]) -> Prediction:
    """One after the other; what they rest on is the first's."""
    return Prediction(
        log_mean=np.concatenate([part.log_mean for part in parts]),
        low=np.concatenate([part.low for part in parts]),
        high=np.concatenate([part.high for part in parts]),
        chance_to_run=np.concatenate([part.chance_to_run for part in parts]),
        out_of_domain=[why for part in parts for why in part.out_of_domain],
        provenance=parts[0].provenance,
    )


def residuals(frame: pl.DataFrame, baseline: Baseline) -> tuple[pl.DataFrame, Array]:
    """The m <= n trials that ran and that physics speaks of; and (m,) the log of measured over physical."""
    good = rows(frame, ran(frame))
    residual = np.log(numbers(good, "tokens_per_s_per_device")) - baseline.log_throughput(good)
    return rows(good, np.isfinite(residual)), residual[np.isfinite(residual)]


def baseline_state(baseline: Baseline) -> dict[str, Any]:
    """What :func:`restored_baseline` needs, for JSON."""
    return {"name": baseline.name, "constants": baseline.constants, "doubt": baseline.doubt.tolist()}


def restored_baseline(state: dict[str, Any]) -> Baseline:
    return BASELINES[state["name"]](state["constants"], np.array(state["doubt"]))


def prior_sd(baseline: Baseline) -> float:
    """How far log throughput lies from the baseline before any trial."""
    return UNKNOWN_SD if baseline.name == "none" else PRIOR_SD


def norm_reach() -> float:
    """Standard deviations on either side that hold :data:`INTERVAL` of a normal."""
    return float(norm.ppf(0.5 + INTERVAL / 2))


def half_width(scores: Array, baseline: Baseline) -> float:
    """The conformal half width of log throughput: by the errors, pooled with a few draws of the prior."""
    draws = prior_sd(baseline) * np.abs(norm.ppf((np.arange(PRIOR_ROWS) + 0.5) / PRIOR_ROWS / 2))
    return conformal_quantile(np.concatenate([scores[np.isfinite(scores)], draws]))


def conformal_quantile(scores: Array) -> float:
    """The ceil((n + 1) INTERVAL) smallest of n scores: covers that share of exchangeable new ones.

    The largest where n < 9, which covers n / (n + 1) only.
    """
    rank = int(np.ceil((len(scores) + 1) * INTERVAL))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])
