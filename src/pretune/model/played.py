"""Sources played as targets: what the others would have said of a platform that is known by now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.model.base import Array, Baseline
from pretune.model.columns import MODEL, keys_of, rows, words
from pretune.model.feasibility import MemoryEdge
from pretune.model.features import Encoder
from pretune.model.gaussian import Process, Terms
from pretune.model.need import MemoryNeed
from pretune.model.sources import Sources, platform_position

LEAF_TREES = 60  # trees whose leaves say which rows are alike
USUAL_DOUBT = 0.2  # of log memory, before anything was played; it counts as one model


class Game:
    """One source played as a target: the others' experts on its rows ``at`` (n,)."""

    def __init__(self, sources: Sources, others: Sources, at: NDArray[np.intp]) -> None:
        frame, x = sources.frame[at], sources.matrix[at]
        self.residual = sources.residual[at]
        self.said = others.predict(frame, x, sources.keys[at])
        self.prior = others.weights(platform_position(frame))
        self.others = others
        # expert weights change with the trials; everything else of the terms does not
        self.terms = terms_of(frame, x, self.said, self.prior, others, sources.encoder)

    def play(self, own: NDArray[np.intp], rest: NDArray[np.intp]) -> tuple[Array, Array]:
        """Standardised errors on ``rest`` after the trials ``own``; the evidence of each scale on ``own``."""
        weight = agreement(self.prior, self.said[own], self.residual[own])
        expected = self.said @ weight
        terms = self.terms.reweighted(self.said, weight)
        process = Process(self.others.level_sd(weight)).fit(terms[own], (self.residual - expected)[own])
        found, sd = process.predict(terms[rest])
        error = np.abs((self.residual - expected)[rest] - found)
        return error / sd, process.evidence - process.evidence.max()


def terms_of(
    frame: pl.DataFrame,
    x: Array,
    said: Array,
    weight: Array,
    sources: Sources,
    encoder: Encoder,
    trees: int = LEAF_TREES,
) -> Terms:
    """The rows as the process sees them; ``x`` (n, f) and ``said`` (n, s) as in :meth:`Sources.predict`."""
    leaves = sources.leaves(x, trees)
    return Terms(said, sources.shares(frame), encoder.points(frame), leaves).reweighted(said, weight)


def agreement(weight: Array, said: Array, residual: Array) -> Array:
    """(s,) the weights after n trials: each expert by the profile likelihood of its errors, level apart."""
    n = len(residual)
    if n < 2:
        return weight
    variance = (residual[:, None] - said).var(axis=0, ddof=1) + 0.05**2
    log_weight = np.log(weight) - 0.5 * (n - 1) * np.log(variance)
    updated = np.exp(log_weight - log_weight.max())
    # never all on one: an expert that is right about six trials may be wrong about the seventh
    return np.asarray(0.1 * weight + 0.9 * updated / updated.sum())


@dataclass(frozen=True)
class NeedDoubt:
    """How far off the log need for memory is, sd, on models other than those of the history; 0 on them."""

    sd: float
    models: frozenset[str]

    @classmethod
    def played(cls, baseline: Baseline, frame: pl.DataFrame, most: int) -> Self:
        """Each of the ``most`` models with most of n >= 0 trials is predicted by the others.

        Its outcomes then say where the capacity seems to lie, m with a standard deviation s. The variance
        between models is the mean of m^2 - s^2 (by moments, as DerSimonian and Laird 1986, doi
        10.1016/0197-2456(86)90046-2), each weighed by how much its outcomes say.
        """
        models = keys_of(frame, MODEL).to_numpy()
        different, counts = np.unique(models.astype(str), return_counts=True)
        if baseline.name == "none":  # nothing says what a trial needs
            return cls(0.0, frozenset(different.tolist()))
        square, total = USUAL_DOUBT**2, 1.0
        for model in different[np.argsort(-counts, kind="stable")][:most] if len(different) > 1 else []:
            own, others = rows(frame, models == model), rows(frame, models != model)
            need = MemoryNeed(baseline).fit(others, np.zeros((len(others), 0)))
            over = need.over_capacity(own, np.zeros((len(own), 0)))
            off, sd = MemoryEdge().fit(over, words(own, "status", "ok")).where()
            weight = USUAL_DOUBT**2 / (USUAL_DOUBT**2 + sd**2)
            square, total = square + weight * max(off**2 - sd**2, 0.0), total + weight
        return cls(float(np.sqrt(square / total)), frozenset(different.tolist()))

    def __call__(self, frame: pl.DataFrame) -> Array:
        """(n,)"""
        return np.where(keys_of(frame, MODEL).is_in(list(self.models)).to_numpy(), 0.0, self.sd)

    def state(self) -> dict[str, Any]:
        return {"sd": self.sd, "models": sorted(self.models)}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        return cls(state["sd"], frozenset(state["models"]))
