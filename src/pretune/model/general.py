"""The surrogate for a history of any origin: trees on what is well known, a process on newcomers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pretune.model.base import Array, Baseline, Prediction, Predictor
from pretune.model.columns import numbered, numbers, ran, rows, words
from pretune.model.feasibility import told_by_neighbours
from pretune.model.games import games, rows_of
from pretune.model.gaussian import SAME, near_kernel
from pretune.model.need import PEAKS
from pretune.model.newcomers import KNOWN, SCALES, SURPRISE, UNTRIED, Newcomers, Rows
from pretune.model.physics.reading import read_once
from pretune.model.saving import ORIGIN, known_columns, read_sheet, rows_frame, verify, write_sheet
from pretune.model.surrogate import (
    BoostedTrees,
    conformal_quantile,
    in_slices,
    kinds_of,
    norm_reach,
)

LEARNED_FROM = ("status", "tokens_per_s_per_device", *PEAKS)
FEW = 8  # trials, with fewer of which a model, a platform or an accelerator is a newcomer
MINORITY = 0.2  # of all trials that newcomers have at most; else there is no bulk to be new to
EVIDENCE = 10.0  # trials that all that was played is worth, when scales are weighed
MAX_NEW = 500  # trials of newcomers, the latest: the process is cubic in them


class Surrogate(BaseEstimator, Predictor):  # type: ignore[misc]  # scikit-learn has no types
    """Fitted on trials of any number of platforms and models, predicts any configuration of any of them.

        surrogate = pretune.Surrogate().fit(history)
        found = surrogate.predict(candidates)
        found.mean, found.low, found.high, found.chance_to_run, found.out_of_domain

    Both frames are polars frames in the store's columns (:func:`pretune.datasets.schema.core_schema`
    and ``knob.*``; a column that is missing is unknown), n >= 0 rows. ``history`` needs
    ``tokens_per_s_per_device`` and, for failed trials, ``status``; the origin of a row is its
    ``platform.name`` and ``accelerator.name``, ``framework`` and ``source``, and nothing tells a target: a
    platform, accelerator or model of which there are few trials, and few beside the others, is a newcomer.
    Its trials are not averaged into the rest, but say, through a Gaussian process, by how much
    it differs. Predictions are in tokens/s per device.
    """

    def __init__(self, baseline: Baseline | None = None, seed: int = 0, n_jobs: int | None = None) -> None:
        self.baseline = baseline
        self.seed = seed
        self.n_jobs = n_jobs

    def fit(self, frame: pl.DataFrame, y: None = None) -> Self:
        """Learn from n >= 0 trials; ``y`` is not used. The well known ones of the last fit are not learned
        again."""
        new = self._newcomers(frame)
        known, made = rows(frame, ~new), (self.baseline, self.seed, self.n_jobs)
        last: tuple[pl.DataFrame, Any] | None = getattr(self, "_fitted_on", None)
        if last is None or last[1] != made or not last[0].equals(known):
            self.trees_ = BoostedTrees(self.baseline, seed=self.seed, n_jobs=self.n_jobs).fit(known)
            self._play(known)
            self._fitted_on = known, made
        self._condition(rows(frame, new).tail(MAX_NEW))
        self.check_rows_ = frame.head(5)
        return self

    def _newcomers(self, frame: pl.DataFrame) -> NDArray[np.bool_]:
        """(n,) trials of what has few, where these are a minority; else, of what has fewest."""
        good, kinds = ran(frame), kinds_of(frame)
        counts = []
        for kind in ("model", "platform", "accelerator"):
            at = numbered(kinds[kind].to_list())
            counts.append(np.bincount(at[good], minlength=int(at.max(initial=-1)) + 1)[at])
        most = MINORITY * len(frame)
        for few in range(FEW, 0, -1):
            each = [count < few for count in counts]
            new = np.any([one & (one.sum() <= most) for one in each], axis=0)
            if new.any() and new.sum() <= most:
                return np.asarray(new, dtype=bool)
        return np.zeros(len(frame), dtype=bool)

    def _play(self, known: pl.DataFrame) -> None:
        """Held-out models, platforms and accelerators as newcomers: what scales explain them, how far their
        levels lie apart, how far intervals must reach."""
        self.level_sds_ = self.trees_.level_sds_
        errors = [np.abs(error[np.isfinite(error)]) for _, error in self.trees_.held_out_.values()]
        usual = float(np.median(np.concatenate(errors))) if any(map(len, errors)) else np.inf
        self.limit_ = SURPRISE * float(np.hypot(usual / norm.ppf(0.75), max(self.level_sds_.values())))
        played = list(games(self.trees_, known, self.seed))
        self.measured_ = sorted({game.kind for game in played})
        self.log_prior_ = np.zeros(len(SCALES))
        fits = [self._process().fit(game.own, game.error) for game in played]
        if played:
            density = [fit.densities(game.rest, game.missed) for fit, game in zip(fits, played, strict=True)]
            self.log_prior_ = EVIDENCE * np.mean(density, axis=0)
        scores = [np.full(5, norm_reach())]
        for fit, game in zip(fits, played, strict=True):
            found, sd = fit.reweigh(self.log_prior_).predict(game.rest)
            scores.append(np.abs(game.missed - found) / sd)
        self.reach_ = conformal_quantile(np.concatenate(scores))

    def _process(self) -> Newcomers:
        return Newcomers(self.level_sds_, set(self.measured_), self.log_prior_, self.limit_)

    def _codes(self, frame: pl.DataFrame) -> dict[str, NDArray[np.int64]]:
        """For each kind the number (n,) of a row's newcomer."""
        found = {}
        for kind, keys in kinds_of(frame).items():
            known = keys.is_in(self.trees_.known_[kind]).to_numpy()
            found[kind] = np.where(known, KNOWN, UNTRIED).astype(np.int64)
            for i, key in enumerate(self.names_[kind]):
                found[kind][(keys == key).to_numpy()] = i
        return found

    def _condition(self, own: pl.DataFrame) -> None:
        """On the newcomers' n >= 0 trials."""
        self.own_ = own
        self.names_ = {
            kind: sorted(set(keys) - set(self.trees_.known_[kind])) for kind, keys in kinds_of(own).items()
        }
        self.told_, ended_well = rows_of(self.trees_, own, self._codes(own)), ran(own)
        good = rows(own, ended_well)
        residual = np.log(numbers(good, "tokens_per_s_per_device")) - self.trees_.predict(good).log_mean
        self.process_ = self._process().fit(self.told_[ended_well], residual)
        every = self.trees_.encoder_.matrix(own)
        self.need_ = self.trees_.need_.told(own, every)
        self.feasibility_ = self.trees_.feasibility_.copy().fit(
            self.need_.over_capacity(own, every), words(own, "status", "ok")
        )

    def predict(self, frame: pl.DataFrame) -> Prediction:
        """Predict configurations. Reads only the columns known before a trial."""
        check_is_fitted(self)
        return in_slices(self._predict, frame, self.n_jobs)

    @read_once()
    def _predict(self, frame: pl.DataFrame) -> Prediction:
        believed = self.trees_.predict(frame)
        if not any(self.names_.values()):
            return believed
        codes = self._codes(frame)
        told = np.any([keys >= 0 for keys in codes.values()], axis=0)
        if not told.any():
            return believed
        some = rows(frame, told)
        new = rows_of(self.trees_, some, {kind: keys[told] for kind, keys in codes.items()})
        found, sd = self.process_.predict(new)
        log_mean, low, high = believed.log_mean.copy(), believed.low.copy(), believed.high.copy()
        chance = believed.chance_to_run.copy()
        log_mean[told] += found
        low[told] = np.exp(log_mean[told] - self.reach_ * sd)
        high[told] = np.exp(log_mean[told] + self.reach_ * sd)
        chance[told] = self._chance(some, new)
        return Prediction(
            log_mean=log_mean,
            low=low,
            high=high,
            chance_to_run=chance,
            out_of_domain=believed.out_of_domain,
            provenance={**believed.provenance, "newcomers' trials": float(len(self.own_))},
        )

    def _chance(self, frame: pl.DataFrame, new: Rows) -> Array:
        """By memory need and all outcomes; then by what became of the newcomer's own nearest trials."""
        x = self.trees_.encoder_.matrix(frame)
        need = self.need_.over_capacity(frame, x)
        chance = self.feasibility_.predict(need, self.trees_.encoder_.stated(x))
        near = near_kernel(self.told_.points, new.points, SAME) * self.told_.same(new)
        return told_by_neighbours(chance, words(self.own_, "status", "ok"), near)

    def save(self, folder: str | Path) -> None:
        check_is_fitted(self)
        folder = Path(folder)
        self.trees_.save(folder / "trees")
        state: dict[str, Any] = {
            "seed": self.seed,
            "measured": self.measured_,
            "log_prior": self.log_prior_.tolist(),
            "reach": self.reach_,
            "limit": self.limit_,
            "own": known_columns(self.own_, *ORIGIN, *LEARNED_FROM),
        }
        write_sheet(self, folder, state, self.check_rows_)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        folder = Path(folder)
        sheet = read_sheet(cls.__name__, folder)
        trees = BoostedTrees.load(folder / "trees")
        model = cls(trees.baseline, sheet["seed"])
        model.trees_ = trees
        model.level_sds_, model.measured_ = trees.level_sds_, sheet["measured"]
        model.log_prior_ = np.array(sheet["log_prior"])
        model.reach_, model.limit_ = sheet["reach"], sheet["limit"]
        model._condition(rows_frame(sheet["own"]))
        model.check_rows_ = rows_frame(sheet["check"]["rows"])
        verify(model, folder, sheet)
        return model
