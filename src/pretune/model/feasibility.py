"""The chance that a configuration runs: what needs more memory is never likelier to fit."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from pretune.model.base import Array
from pretune.model.boosting import apply, cells, load_booster, thresholds
from pretune.model.columns import distinct
from pretune.model.factors import NOISE, STATUSES
from pretune.model.need import PHYSICS_SD

if TYPE_CHECKING:
    import xgboost

# Grid of the posterior, by axis. The physics of memory may be off by a factor, in either direction.
_EDGES = np.linspace(-2.0, 2.0, 81)  # log of need over capacity at which half of the trials run out of it
_WIDTHS = np.array([0.03, 0.08, 0.2, 0.4])  # of the edge
_LOST = np.array([0.005, 0.03, 0.1, 0.3])  # share of trials that fail although they fit
_UNSEEN = np.array([0.02, 0.3, 0.98])  # share of those out of memory that are not recorded as such
_LOST_PRIOR = np.array([0.4, 0.35, 0.2, 0.05])
_FINE = np.linspace(-4.0, 4.0, 801)
PRIOR_BASE = (0.9, 2.0)  # chance, and the trials it is worth, where the need is unknown
NODES = 5  # at which the chance is evaluated where the need is in doubt
MIN_FAILURES = 5  # to grow trees on them


class MemoryEdge:
    """P(ok) from x (n,), the log of predicted memory need over capacity; NaN: unknown.

    A trial that fits fails with probability ``lost`` all the same, of a cause that is never memory; one
    that does not is recorded as ``oom``, or with probability ``unseen`` as another failure. So
    a failure of unknown cause is as much evidence of too little memory as its need, and the
    labels of the other failures, make likely. The chance is the mean under the posterior on a
    grid of edge, width and the two shares: it falls in x whatever was seen, and needs no minimum of rows.
    """

    def __init__(self, sd: float = PHYSICS_SD) -> None:
        """``sd``: how far the predicted log need is off, before any outcome."""
        self.log_weight: Array = (
            (-0.5 * (_EDGES / sd) ** 2)[:, None, None, None]
            + np.zeros(len(_WIDTHS))[:, None, None]
            + np.log(_LOST_PRIOR)[:, None]
            + np.zeros(len(_UNSEEN))
        )
        self.base: tuple[float, float] = PRIOR_BASE
        self._curve: Array | None = None  # chances to run over _FINE, once they were asked for

    def fit(self, x: Array, status: NDArray[np.object_], strength: float = 1.0) -> Self:
        """Learn from n >= 0 trials; ``strength`` below 1 discounts those of other platforms."""
        for value in STATUSES:
            at = x[np.isfinite(x) & (status == value)]
            counts, edges = np.histogram(np.clip(at, -4, 4), bins=_FINE)  # as fast for many rows as for few
            held = counts > 0
            if held.any():
                chance = _outcome(STATUSES[value], (edges[:-1] + edges[1:])[held] / 2)
                self.log_weight = self.log_weight + strength * np.log(chance) @ counts[held]
        self._curve = None
        known = strength * np.isin(status, list(STATUSES)).sum()
        self.base = _updated(self.base, strength * (status == "ok").sum(), known)
        return self

    def where(self) -> tuple[float, float]:
        """The edge in x: mean and standard deviation of what is believed of it."""
        weight = self._weight().sum(axis=(1, 2, 3))
        mean = float(weight @ _EDGES)
        return mean, float(np.sqrt(weight @ (_EDGES - mean) ** 2))

    def _weight(self) -> Array:
        weight = np.exp(self.log_weight - self.log_weight.max())
        return np.asarray(weight / weight.sum())

    def predict(self, x: Array) -> Array:
        """(n,) probabilities; the share of trials that ran where x is unknown."""
        if self._curve is None:
            self._curve = np.tensordot(self._weight(), _outcome("ok", _FINE), axes=4)
        return np.where(np.isfinite(x), np.interp(np.nan_to_num(x), _FINE, self._curve), self.base[0])

    def blame(self, x: Array) -> Array:
        """(n,) the chance that memory is why a trial failed whose cause is unknown; 1 where x is."""
        weight = self._weight()
        lost = np.tensordot(weight, _outcome("lost", _FINE), axes=4)
        short = np.tensordot(weight, _outcome("unseen", _FINE), axes=4)
        return np.where(np.isfinite(x), np.interp(np.nan_to_num(x), _FINE, short / lost), 1.0)

    def state(self) -> dict[str, Any]:
        return {"log_weight": self.log_weight.tolist(), "base": list(self.base)}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        model = cls()
        model.log_weight = np.array(state["log_weight"], dtype=np.float64)
        model.base = tuple(state["base"])
        return model


def told_by_neighbours(chance: Array, status: NDArray[np.object_], near: Array) -> Array:
    """(n,) the chances, averaged with what became of m trials, each as near (m, n), 0..1, as it is alike."""
    ended_well = (status == "ok").astype(np.float64)
    return np.asarray((chance + ended_well @ near) / (1 + near.sum(axis=0)))


def _fits(x: Array) -> Array:
    """(edges, widths, 1, 1, n) the chance that a need of x finds room."""
    gap = _EDGES[:, None, None, None, None] - x
    found: Array = expit(gap / _WIDTHS[:, None, None, None])
    return NOISE / 2 + (1 - NOISE) * found


def _outcome(kind: str, x: Array) -> Array:
    """(edges, widths, lost, unseen, n) probability of an ok, an oom, or a failure of unknown cause ("lost"),
    which add up to 1; and of the two parts of the last: memory fell short ("unseen"), or not ("spoilt")."""
    fits, lost, unseen = _fits(x), _LOST[:, None, None], _UNSEEN[:, None]
    if kind == "ok":
        found = (1 - lost) * fits
    elif kind == "spoilt":
        found = lost * fits
    elif kind == "oom":
        found = (1 - unseen) * (1 - fits)
    elif kind == "unseen":
        found = unseen * (1 - fits)
    else:
        found = unseen * (1 - fits) + lost * fits
    return np.broadcast_to(found, (len(_EDGES), len(_WIDTHS), len(_LOST), len(_UNSEEN), len(x)))


def _updated(base: tuple[float, float], hits: float, count: float) -> tuple[float, float]:
    """The mean and weight of a beta belief after more trials."""
    total = base[1] + float(count)
    return (base[0] * base[1] + float(hits)) / total, total


class Feasibility:
    """P(status ok): the memory edge, corrected by trees on the knobs where failures are many.

    The trees start from the edge's log odds, and are monotone in the need for memory themselves. A failure
    of unknown cause is an example to them by as much as the edge blames memory for it; where the
    need is not known (a tuning table), wholly.
    """

    def __init__(self, sd: float = PHYSICS_SD, seed: int = 0, n_jobs: int = 1) -> None:
        self.edge = MemoryEdge(sd)
        self.booster: xgboost.Booster | None = None
        self.seed, self.n_jobs = seed, n_jobs

    def copy(self) -> Self:
        """One that can learn more while this one stays as it is."""
        other = copy(self)
        other.edge = copy(self.edge)
        return other

    def fit(
        self, x: Array, status: NDArray[np.object_], matrix: Array | None = None, strength: float = 1.0
    ) -> Self:
        """n >= 0 trials: ``x`` (n,) log memory ratio, ``matrix`` (n, f) features for the trees, if any."""
        self.edge.fit(x, status, strength)
        ok = status == "ok"
        weight = np.where(np.isin(status, ("crash", "timeout")), self.edge.blame(x), 1.0)
        weight = np.where(np.isin(status, ("diverged", "invalid")), 0.0, weight)
        failures = weight[~ok].sum()
        if matrix is not None and matrix.shape[1] and min(failures, ok.sum()) >= MIN_FAILURES:
            self.booster = self._train(x, ok.astype(float), weight, matrix)
        return self

    def _train(self, x: Array, ok: Array, weight: Array, matrix: Array) -> xgboost.Booster:
        import xgboost

        params = {
            "objective": "binary:logistic",
            "max_depth": 3,
            "eta": 0.1,
            "max_bin": 64,
            "base_score": 0.5,
            "monotone_constraints": str((-1, *[0] * matrix.shape[1])),
            "seed": self.seed,
            "nthread": self.n_jobs,
            "verbosity": 0,
        }
        margin = logit(self._edge(x))
        data = xgboost.DMatrix(np.column_stack([x, matrix]), ok, weight=weight, base_margin=margin)
        return xgboost.train(params, data, num_boost_round=60)

    def _edge(self, x: Array) -> Array:
        return np.clip(self.edge.predict(x), 0.002, 0.998)

    def doubted(self, x: Array, sd: Array, matrix: Array | None = None) -> Array:
        """(n,) mean of the probabilities where ``x`` may be off by ``sd`` (n,); Gauss-Hermite quadrature."""
        if not sd.any():
            return self.predict(x, matrix)
        # many rows of a search need the same memory, and differ where the trees do not look
        looked_at = [] if matrix is None else cells([thresholds(self.booster)], np.column_stack([x, matrix]))
        first, row = distinct([x, sd, *looked_at], len(x))
        nodes, weight = np.polynomial.hermite_e.hermegauss(NODES)
        x, sd, matrix = x[first], sd[first], None if matrix is None else matrix[first]
        chances = [self.predict(x + sd * node, matrix) for node in nodes]
        return np.asarray(weight / weight.sum() @ np.array(chances))[row]

    def predict(self, x: Array, matrix: Array | None = None) -> Array:
        """(n,) probabilities; ``matrix`` as in :meth:`fit`."""
        margin = logit(self._edge(x))
        if self.booster is not None and matrix is not None:
            margin = margin + apply(self.booster, np.column_stack([x, matrix]))
        return np.asarray(expit(margin))

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path) -> dict[str, Any]:
        """Write ``feasibility.ubj`` where there are trees; returns the rest, for JSON."""
        state: dict[str, Any] = {"edge": self.edge.state(), "trees": None}
        if self.booster is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.booster.save_model(folder / "feasibility.ubj")
            state |= {"trees": "feasibility.ubj", "features": self.booster.num_features()}
        return state

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any]) -> Self:
        model = cls()
        model.edge = MemoryEdge.restore(state["edge"])
        if state["trees"] is not None:
            model.booster = load_booster(folder / state["trees"], state["features"])
        return model
