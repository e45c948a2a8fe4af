"""Transfer: what other platforms learned, carried to a target by physics and corrected by its few trials."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from pretune.errors import InputError
from pretune.model.base import Array, Baseline, Prediction, Predictor
from pretune.model.columns import configurations, rows, words
from pretune.model.feasibility import Feasibility, told_by_neighbours
from pretune.model.features import Encoder
from pretune.model.gaussian import SAME, SCALES, Process, near_kernel, one_rest, points_only
from pretune.model.need import PEAKS, PRIOR_ROWS, MemoryNeed
from pretune.model.outcomes import Outcomes
from pretune.model.physics import TransformerPhysics
from pretune.model.physics.reading import read_once
from pretune.model.played import LEAF_TREES, Game, NeedDoubt, agreement, terms_of
from pretune.model.saving import known_columns, read_sheet, rows_frame, verify, write_sheet
from pretune.model.sources import Sources, platform_position
from pretune.model.surrogate import (
    baseline_state,
    conformal_quantile,
    in_slices,
    norm_reach,
    prior_sd,
    residuals,
    restored_baseline,
)

LEARNED_FROM = ("platform.name", "status", "tokens_per_s_per_device", *PEAKS)  # of the target's trials
MAX_TRIALS = 300  # of the target, the latest: the process is cubic in them
PLAYED_SOURCES = 5  # sources that are played as a target, those with most trials
PLAYED_TRIALS = (0, 2, 6)  # how many trials they then have
PLAYED_ROWS = 60  # how many others are predicted
PRIOR_SCORES = 5  # what a normal's own reach counts among the played errors
SOURCE_EVIDENCE = 25.0  # trials that all sources' memory outcomes together are worth at most
MAX_REACH = 3.0  # standard deviations; beyond, playing says more of odd sources than of the target
REMEMBERED = 64  # slices of rows that a search asks of again and again
BEYOND_SD = 0.15  # of log throughput, per unit of distance outside of all that was seen


class TransferSurrogate(BaseEstimator, Predictor):  # type: ignore[misc]  # scikit-learn has no types
    """Predicts the platform ``target`` from any number of other platforms and 0 to n trials of its own.

    log throughput = physics + weighted experts of the sources + a Gaussian process, with a level, on
    what the target's trials show beyond that. A source weighs by likeness of platforms, and by how
    well it agrees with the target's trials. Scales and intervals are learned by playing
    each source as the target of the others. Without sources, physics and process remain;
    without physics (:class:`~pretune.model.NoPhysics`), experts and process.
    """

    def __init__(self, target: str, baseline: Baseline | None = None, seed: int = 0) -> None:
        self.target = target
        self.baseline = baseline
        self.seed = seed

    # -- learning -------------------------------------------------------------------
    @read_once()
    def fit(self, frame: pl.DataFrame, y: None = None) -> Self:
        """Rows with ``platform.name`` = ``target`` are its trials, all others are sources; ``y`` is not used.

        Sources that are those of the last fit are not learned again. Raises :class:`InputError` when
        there are rows without ``platform.name``.
        """
        if len(frame) and "platform.name" not in frame.columns:
            raise InputError("trials: column platform.name is missing; it tells the target from the sources")
        own = words(frame, "platform.name") == self.target
        others = _stated(rows(frame, ~own))
        baseline = TransformerPhysics() if self.baseline is None else self.baseline
        with threadpool_limits(1, "blas"):  # the matrices are small: threads cost more than they bring
            if not self._learned(others, baseline):
                self.baseline_ = baseline.calibrated(others)
                self._fit_sources(others)
                self._fitted_on = others
            self.encoder_ = Encoder(self.baseline_).fit(frame)
            self._condition(rows(frame, own))
        self.check_rows_ = frame.head(5)
        return self

    def _learned(self, others: pl.DataFrame, baseline: Baseline) -> bool:
        last: pl.DataFrame | None = getattr(self, "_fitted_on", None)
        return last is not None and type(self.baseline_) is type(baseline) and last.equals(others)

    def _fit_sources(self, others: pl.DataFrame) -> None:
        self.sources_ = Sources(self.baseline_, self.seed).fit(others)
        self._asked = _nothing_asked()
        x = self.sources_.encoder.matrix(others)
        self.source_need_ = MemoryNeed(self.baseline_, self.seed).fit(others, x)
        self.source_feasibility_ = Feasibility(self.source_need_.sd_, self.seed).fit(
            self.source_need_.over_capacity(others, x),
            words(others, "status", "ok"),
            self.sources_.encoder.stated(x),
            strength=min(1.0, SOURCE_EVIDENCE / max(len(others), 1)),
        )
        given = self.source_feasibility_.predict(
            self.source_need_.over_capacity(others, x), self.sources_.encoder.stated(x)
        )
        # what fits in memory is the physics' to carry over; without it, most of what fails fails everywhere
        self.outcomes_ = Outcomes(0.5 if self.baseline_.name == "none" else 0.0).fit(others, given)
        self.need_doubt_ = NeedDoubt.played(self.baseline_, others, PLAYED_SOURCES)
        self._play()

    def _play(self) -> None:
        """Each source as the target of the others: what scales explain it, how far intervals must reach."""
        sources, rng = self.sources_, np.random.default_rng(self.seed)
        self.log_prior_ = np.zeros(len(SCALES))
        scores: dict[bool, list[Array]] = {False: [], True: []}
        most = np.argsort(sources.counts)[::-1][: PLAYED_SOURCES if len(sources.counts) > 1 else 0]
        for i in most.tolist():
            at = np.flatnonzero(sources.platform == sources.platforms[i])
            game = Game(sources, sources.without(sources.platforms[i]), at)
            for trials in PLAYED_TRIALS:
                order = rng.permutation(len(at))
                score, evidence = game.play(order[:trials], order[trials : trials + PLAYED_ROWS])
                scores[trials > 0].append(score)
                self.log_prior_ += evidence / len(most)
        normal = np.full(PRIOR_SCORES, norm_reach())
        # before the first trial the level's prior may prove too wide; after it, a few errors of sources
        # that resemble each other must not make a normal's interval narrower
        least = {False: 1.0, True: norm_reach()}
        self.reach_ = [
            float(
                np.clip(conformal_quantile(np.concatenate([normal, *scores[any_]])), least[any_], MAX_REACH)
            )
            for any_ in (False, True)
        ]

    def _condition(self, own: pl.DataFrame) -> None:
        """On the target's n >= 0 trials."""
        self.trials_ = own
        good, residual = residuals(own.tail(MAX_TRIALS), self.baseline_)
        x = self.sources_.encoder.matrix(good)
        self.residual_, said = residual, self.sources_.predict(good, x, configurations(good))
        position = platform_position(own) if len(own) else None
        self.weight_ = agreement(self.sources_.weights(position), said, residual)
        terms = terms_of(good, x, said, self.weight_, self.sources_, self.encoder_)
        self.process_ = Process(self.sources_.level_sd(self.weight_), self.log_prior_)
        self.process_.fit(terms, residual - said @ self.weight_)
        every = self.sources_.encoder.matrix(own)
        self.need_ = self.source_need_.told(own, every)
        self.feasibility_ = self.source_feasibility_.copy().fit(
            self.need_.over_capacity(own, every),
            words(own, "status", "ok"),
        )

    # -- predicting -----------------------------------------------------------------
    def predict(self, frame: pl.DataFrame) -> Prediction:
        """Predict configurations of the target. Reads only the columns known before a trial."""
        check_is_fitted(self)
        return in_slices(self._predict, frame, None)

    @read_once()
    def _predict(self, frame: pl.DataFrame) -> Prediction:
        base, x = self.baseline_.log_throughput(frame), self.sources_.encoder.matrix(frame)
        keys = configurations(frame)
        said = self._said(frame, x, keys)
        weight = self._weight_for(frame)
        trees = LEAF_TREES if len(self.process_.y) else 0  # without a trial, nothing is like it
        terms = terms_of(frame, x, said, weight, self.sources_, self.encoder_, trees)
        found, sd = self.process_.predict(terms)
        log_mean = np.nan_to_num(base) + said @ weight + found
        prior = prior_sd(self.baseline_)
        sd = np.hypot(sd, np.minimum(BEYOND_SD * self.encoder_.beyond(frame), prior))
        sd = np.where(np.isfinite(base), sd, sd + prior)
        half = self.reach_[len(self.process_.y) > 0] * sd
        return Prediction(
            log_mean=log_mean,
            low=np.exp(log_mean - half),
            high=np.exp(log_mean + half),
            chance_to_run=self._chance(frame, x, keys),
            out_of_domain=self.encoder_.strange(frame),
            provenance={
                **dict(zip(self.sources_.names, weight.tolist(), strict=True)),
                "trials": float(len(self.trials_)),
            },
        )

    def memory_bytes(self, frame: pl.DataFrame) -> Array:
        """(n,) what the fullest device of the target needs; NaN where physics says nothing of memory."""
        check_is_fitted(self)
        return self.need_.needed_bytes(frame, self.sources_.encoder.matrix(frame))

    def unaided(self, frame: pl.DataFrame, believed: Prediction) -> Prediction:
        """``believed`` of the rows of ``frame``, as if no source had said how fast they are.

        Physics and the target's own trials remain; what is far from those may lie as far from
        them as the configurations of a source from each other.
        """
        if not self.sources_.platforms:
            return believed
        process = Process(self.process_.level_sd, one_rest(self.sources_.spread()))
        process.fit(points_only(self.process_.terms.points), self.residual_)
        found, sd = process.predict(points_only(self.encoder_.points(frame)))
        log_mean = np.nan_to_num(self.baseline_.log_throughput(frame)) + found
        half = norm_reach() * sd
        return replace(believed, log_mean=log_mean, low=np.exp(log_mean - half), high=np.exp(log_mean + half))

    def _said(self, frame: pl.DataFrame, x: Array, keys: pl.Series) -> Array:
        """(n, s) by the sources: the same after every trial of a search, which asks of the same rows."""
        for rows_, said in tuple(self._asked):
            if rows_.equals(frame):
                return said
        said = self.sources_.predict(frame, x, keys)
        self._asked.append((frame.clone(), said))  # a clone stays when rows are changed
        return said

    def _weight_for(self, frame: pl.DataFrame) -> Array:
        """Before the first trial, the candidates themselves say what platform the target is."""
        if len(self.trials_) or not len(frame):
            return self.weight_
        return self.sources_.weights(platform_position(frame))

    def _chance(self, frame: pl.DataFrame, x: Array, keys: pl.Series) -> Array:
        """By memory need and the sources' failures; then by what became of the target's nearest trials."""
        stated = self.sources_.encoder.stated(x)
        need = self.need_.over_capacity(frame, x)
        sd = self.need_doubt_(frame) * np.sqrt(PRIOR_ROWS / (PRIOR_ROWS + len(self.trials_)))
        chance = self.outcomes_.correct(keys, self.feasibility_.doubted(need, sd, stated))
        if not len(self.trials_):
            return chance
        near = near_kernel(self.encoder_.points(self.trials_), self.encoder_.points(frame), SAME)
        return told_by_neighbours(chance, words(self.trials_, "status", "ok"), near)

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: str | Path) -> None:
        check_is_fitted(self)
        folder = Path(folder)
        state: dict[str, Any] = {
            "target": self.target,
            "seed": self.seed,
            "baseline": baseline_state(self.baseline_),
            "encoder": self.encoder_.state(),
            "sources": self.sources_.save(folder),
            "need": self.source_need_.save(folder),
            "feasibility": self.source_feasibility_.save(folder),
            "outcomes": self.outcomes_.state(),
            "need_doubt": self.need_doubt_.state(),
            "log_prior": self.log_prior_.tolist(),
            "reach": self.reach_,
            "trials": known_columns(self.trials_, *LEARNED_FROM),
        }
        write_sheet(self, folder, state, self.check_rows_)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        folder = Path(folder)
        sheet = read_sheet(cls.__name__, folder)
        baseline = restored_baseline(sheet["baseline"])
        model = cls(sheet["target"], baseline, sheet["seed"])
        model.baseline_ = baseline
        model.encoder_ = Encoder.restore(sheet["encoder"], baseline)
        model.sources_ = Sources.restore(folder, sheet["sources"], baseline, sheet["seed"])
        model.source_need_ = MemoryNeed.restore(folder, sheet["need"], baseline)
        model.source_feasibility_ = Feasibility.restore(folder, sheet["feasibility"])
        model.outcomes_ = Outcomes.restore(sheet["outcomes"])
        model.need_doubt_ = NeedDoubt.restore(sheet["need_doubt"])
        model.log_prior_, model.reach_ = np.array(sheet["log_prior"]), sheet["reach"]
        model._asked = _nothing_asked()
        model._condition(rows_frame(sheet["trials"]))
        model.check_rows_ = rows_frame(sheet["check"]["rows"])
        verify(model, folder, sheet)
        return model


def _nothing_asked() -> deque[tuple[pl.DataFrame, Array]]:
    """Rows that were asked of, and what the sources said of them."""
    return deque(maxlen=REMEMBERED)


def _stated(frame: pl.DataFrame) -> pl.DataFrame:
    """Without the columns that are null in every row: a target's trial brings some that no source has."""
    return frame.select(column for column in frame if column.null_count() < max(len(frame), 1))
