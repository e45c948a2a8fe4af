"""Transfer: what other platforms learned, carried to a target by physics and corrected by its few trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator

from pretune.errors import InputError
from pretune.model.base import Array, Baseline, Prediction, Surrogate
from pretune.model.columns import ran, words
from pretune.model.feasibility import Feasibility
from pretune.model.features import Encoder
from pretune.model.gaussian import SCALES, Process, Terms, near_kernel
from pretune.model.physics import BASELINES, TransformerPhysics
from pretune.model.saving import known_columns, read_sheet, rows_frame, verify, write_sheet
from pretune.model.sources import POOLED, Sources, platform_position
from pretune.model.surrogate import conformal_quantile, memory_ratio, prior_sd, residuals

LEAF_TREES = 60  # trees whose leaves say which rows are alike
NORMAL_90 = 1.645
MAX_TRIALS = 400  # of the target, the latest: the process is cubic in them
PLAYED_TRIALS = (0, 2, 6)  # how many trials a source has when it is played as a target
SOURCE_EVIDENCE = 25.0  # trials that all sources' memory outcomes together are worth at most


class TransferSurrogate(BaseEstimator, Surrogate):
    """Predicts the platform ``target`` from any number of other platforms and 0 to n trials of its own.

    log throughput = physics + level + weighted experts of the sources + a Gaussian process on what
    the target's trials show beyond that. A source weighs by likeness of platforms, and by how
    well it agrees with the target's trials. Scales and intervals are learned by playing
    each source as the target of the others. Without sources, physics and process remain;
    without physics (:class:`~pretune.model.NoPhysics`), experts and process.
    """

    def __init__(self, target: str, baseline: Baseline | None = None, seed: int = 0) -> None:
        self.target = target
        self.baseline = baseline
        self.seed = seed

    # -- learning -------------------------------------------------------------------
    def fit(self, frame: pl.DataFrame, y: None = None) -> Self:  # noqa: ARG002  (scikit-learn's signature)
        """Rows with ``platform.name`` = ``target`` are its trials, all others are sources.

        Sources that are those of the last fit are not learned again. Raises :class:`InputError` when there
        are rows without ``platform.name``.
        """
        if len(frame) and "platform.name" not in frame.columns:
            raise InputError("trials: column platform.name is missing; it tells the target from the sources")
        own = words(frame, "platform.name") == self.target
        others = frame.filter(pl.Series(~own, dtype=pl.Boolean))
        baseline = TransformerPhysics() if self.baseline is None else self.baseline
        if not self._learned(others, baseline):
            self.baseline_ = baseline
            self._fit_sources(others)
            self._fitted_on = others
        self._fit_target(frame.filter(pl.Series(own, dtype=pl.Boolean)))
        self.check_rows_ = frame.head(5)
        return self

    def _learned(self, others: pl.DataFrame, baseline: Baseline) -> bool:
        last: pl.DataFrame | None = getattr(self, "_fitted_on", None)
        return last is not None and type(self.baseline_) is type(baseline) and last.equals(others)

    def _fit_sources(self, others: pl.DataFrame) -> None:
        self.encoder_ = Encoder(self.baseline_).fit(others)
        self.sources_ = Sources(self.baseline_, self.seed).fit(others)
        x, status = memory_ratio(others, self.baseline_), words(others, "status", "ok")
        strength = min(1.0, SOURCE_EVIDENCE / max(len(others), 1))
        self.memory_prior_ = Feasibility().fit(x, status, strength)
        self._play()

    def _play(self) -> None:
        """Each source as the target of the others: what scales explain it, how far intervals must reach."""
        self.log_prior_, scores = np.zeros(len(SCALES)), []
        rng = np.random.default_rng(self.seed)
        platforms = self.sources_.platforms if len(self.sources_.platforms) > 1 else []
        for name in platforms:
            others = self.sources_.without(name)
            rows = np.flatnonzero(self.sources_.platform == name)
            frame = self.sources_.frame[rows]
            level = self.sources_.levels[self.sources_.platforms.index(name)]
            residual = self.sources_.centred[rows] + level
            for trials in PLAYED_TRIALS:
                pick = rng.permutation(len(rows))
                own, rest = pick[:trials], pick[trials : trials + 60]
                score, evidence = self._played(others, frame, residual, own, rest)
                scores.append(score)
                self.log_prior_ += evidence / len(platforms)
        played = np.concatenate(scores) if scores else np.zeros(0)
        normal = NORMAL_90 * np.ones(5)
        self.reach_ = float(np.clip(conformal_quantile(np.concatenate([played, normal])), 1.0, 6.0))

    def _played(
        self, others: Sources, frame: pl.DataFrame, residual: Array, own: Array, rest: Array
    ) -> tuple[Array, Array]:
        """Standardised errors on ``rest`` after the trials ``own``, and the evidence of each scale on ``own``."""
        said, position = others.predict(frame), platform_position(frame)
        weight = agreement(others.weights(position), said[own], residual[own])
        mean, level_sd = others.level(weight)
        terms = self._terms(frame, said, weight, others)
        prior = said @ weight + mean
        process = Process(level_sd).fit(_take(terms, own), residual[own] - prior[own])
        found, sd = process.predict(_take(terms, rest))
        error = np.abs(residual[rest] - prior[rest] - found)
        return error / sd, process.evidence - process.evidence.max() if len(own) else np.zeros(len(SCALES))

    def _fit_target(self, own: pl.DataFrame) -> None:
        """Condition on the target's n >= 0 trials."""
        self.trials_ = own
        good = own.filter(pl.Series(ran(own), dtype=pl.Boolean)).tail(MAX_TRIALS)
        residual = residuals(good, self.baseline_)
        known = np.isfinite(residual)
        good, residual = good.filter(pl.Series(known, dtype=pl.Boolean)), residual[known]
        if not self.sources_.platforms:
            self.encoder_ = Encoder(self.baseline_).fit(own)
        said = self.sources_.predict(good)
        position = platform_position(own) if len(own) and self.baseline_.name != "none" else None
        self.weight_ = agreement(self.sources_.weights(position), said, residual)
        self.level_, level_sd = self.sources_.level(self.weight_)
        terms = self._terms(good, said, self.weight_, self.sources_)
        self.process_ = Process(level_sd, self.log_prior_)
        self.process_.fit(terms, residual - said @ self.weight_ - self.level_)
        self.feasibility_ = Feasibility(self.memory_prior_.log_weight_).fit(
            memory_ratio(own, self.baseline_), words(own, "status", "ok")
        )

    def _terms(self, frame: pl.DataFrame, said: Array, weight: Array, sources: Sources) -> Terms:
        centre = (said @ weight)[:, None] if len(weight) else np.zeros((len(frame), 1))
        expert = sources.experts.get(POOLED) or next(iter(sources.experts.values()), None)
        empty = np.zeros((len(frame), 0), np.int32)
        return Terms(
            experts=(said - centre) * np.sqrt(weight),
            shares=self.baseline_.shares(frame),
            points=self.encoder_.points(frame),
            leaves=empty if expert is None else expert.leaves(frame, LEAF_TREES),
        )

    # -- predicting -----------------------------------------------------------------
    def predict(self, frame: pl.DataFrame) -> Prediction:
        """Predict configurations of the target. Reads only the columns known before a trial."""
        base = self.baseline_.log_throughput(frame)
        said = self.sources_.predict(frame)
        weight, level = self._weight_for(frame)
        found, sd = self.process_.predict(self._terms(frame, said, weight, self.sources_))
        log_mean = np.nan_to_num(base, nan=0.0) + level + said @ weight + found
        half = self.reach_ * np.where(np.isfinite(base), sd, sd + prior_sd(self.baseline_))
        return Prediction(
            log_mean=log_mean,
            low=np.exp(log_mean - half),
            high=np.exp(log_mean + half),
            chance_to_run=self._chance(frame),
            out_of_domain=self.encoder_.strange(frame),
            provenance={
                **dict(zip(self.sources_.names, weight.tolist(), strict=True)),
                "trials": float(len(self.trials_)),
            },
        )

    def _weight_for(self, frame: pl.DataFrame) -> tuple[Array, float]:
        """Before the first trial, the candidates themselves say what platform the target is."""
        if len(self.trials_) or not len(frame):
            return self.weight_, self.level_
        weight = self.sources_.weights(platform_position(frame))
        return weight, self.sources_.level(weight)[0]

    def _chance(self, frame: pl.DataFrame) -> Array:
        """Memory need against what ran and what did not; then what became of the target's nearest trials."""
        chance = self.feasibility_.predict(memory_ratio(frame, self.baseline_))
        if not len(self.trials_):
            return chance
        near = near_kernel(self.encoder_.points(self.trials_), self.encoder_.points(frame), shrink=0.4)
        ended_well = (words(self.trials_, "status", "ok") == "ok").astype(np.float64)
        return (chance + ended_well @ near) / (1 + near.sum(axis=0))

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        state: dict[str, Any] = {
            "target": self.target,
            "seed": self.seed,
            "baseline": self.baseline_.name,
            "encoder": self.encoder_.state(),
            "sources": self.sources_.save(folder),
            "memory_prior": self.memory_prior_.state(),
            "log_prior": self.log_prior_.tolist(),
            "reach": self.reach_,
            "trials": known_columns(self.trials_, "platform.name", "status", "tokens_per_s_per_device"),
        }
        write_sheet(self, folder, state, self.check_rows_)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        folder = Path(folder)
        sheet = read_sheet(cls.__name__, folder)
        baseline = BASELINES[sheet["baseline"]]()
        model = cls(sheet["target"], baseline, sheet["seed"])
        model.baseline_ = baseline
        model.encoder_ = Encoder.restore(sheet["encoder"], baseline)
        model.sources_ = Sources.restore(folder, sheet["sources"], baseline, sheet["seed"])
        model.memory_prior_ = Feasibility.restore(sheet["memory_prior"])
        model.log_prior_, model.reach_ = np.array(sheet["log_prior"]), sheet["reach"]
        model._fit_target(rows_frame(sheet["trials"]))
        verify(model, folder, sheet)
        return model


def agreement(weight: Array, said: Array, residual: Array) -> Array:
    """(s,) the weights after n trials: each expert by the profile likelihood of its errors, level apart."""
    n = len(residual)
    if n < 2 or not len(weight):
        return weight
    error = residual[:, None] - said
    variance = error.var(axis=0, ddof=1) + 0.05**2
    log_weight = np.log(weight) - 0.5 * (n - 1) * np.log(variance)
    updated = np.exp(log_weight - log_weight.max())
    # never all on one: an expert that is right about six trials may be wrong about the seventh
    return 0.1 * weight + 0.9 * updated / updated.sum()


def _take(terms: Terms, rows: Array) -> Terms:
    return Terms(terms.experts[rows], terms.shares[rows], terms.points[rows], terms.leaves[rows])


