"""The chance that a configuration runs: what needs more memory is never likelier to fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from pretune.model.base import Array
from pretune.model.boosting import apply, load_booster

if TYPE_CHECKING:
    import xgboost

# Grid of the posterior: log of predicted need over capacity at which half of the trials fail,
# and the width of the edge. The physics may be off by a factor, in either direction.
_EDGES = np.linspace(-2.0, 2.0, 81)
_WIDTHS = np.array([0.03, 0.08, 0.2, 0.4])
_FINE = np.linspace(-4.0, 4.0, 801)
PRIOR_SD = 0.45  # of the edge about 0: how far predicted memory needs are off
NOISE = 0.02  # a share of outcomes that the need for memory does not explain
PRIOR_BASE = (0.9, 2.0)  # chance, and the trials it is worth, where the need is unknown
PRIOR_UNEXPLAINED = (0.05, 10.0)  # the same of a failure of unknown cause
MIN_FAILURES = 5  # to grow trees on them


class MemoryEdge:
    """P(fits) from x (n,), the log of predicted memory need over capacity; NaN: unknown.

    The mean over (edge, width) of expit((edge - x) / width) under the posterior on a grid: it falls in
    x whatever was seen, so that one trial that ran out of memory lowers the chance of all that need
    more, and it needs no minimum of rows. Only ``ok`` and ``oom`` teach it.
    """

    def __init__(self, prior: MemoryEdge | None = None) -> None:
        edge = -0.5 * (_EDGES / PRIOR_SD) ** 2
        fresh = np.repeat(edge[:, None], len(_WIDTHS), axis=1)
        self.log_weight: Array = fresh if prior is None else prior.log_weight
        self.base: tuple[float, float] = PRIOR_BASE if prior is None else prior.base

    def fit(self, x: Array, status: NDArray[np.object_], strength: float = 1.0) -> Self:
        """Learn from n >= 0 trials; ``strength`` below 1 discounts those of other platforms."""
        for value in ("ok", "oom"):
            at = x[np.isfinite(x) & (status == value)]
            counts, edges = np.histogram(np.clip(at, -4, 4), bins=_FINE)  # as fast for many rows as for few
            held = counts > 0
            if held.any():
                fits = _fits((edges[:-1] + edges[1:])[held] / 2)
                chance = NOISE / 2 + (1 - NOISE) * (fits if value == "ok" else 1 - fits)
                self.log_weight = self.log_weight + strength * np.log(chance) @ counts[held]
        known = strength * np.isin(status, ("ok", "oom")).sum()
        self.base = _updated(self.base, strength * (status == "ok").sum(), known)
        return self

    def predict(self, x: Array) -> Array:
        """(n,) probabilities; the share of trials that fitted where x is unknown."""
        weight = np.exp(self.log_weight - self.log_weight.max())
        curve = np.tensordot(weight / weight.sum(), _fits(_FINE), axes=2)
        return np.where(np.isfinite(x), np.interp(np.nan_to_num(x), _FINE, curve), self.base[0])

    def state(self) -> dict[str, Any]:
        return {"log_weight": self.log_weight.tolist(), "base": list(self.base)}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        model = cls()
        model.log_weight = np.array(state["log_weight"], dtype=np.float64)
        model.base = tuple(state["base"])
        return model


def _fits(x: Array) -> Array:
    found: Array = expit((_EDGES[:, None, None] - x[None, None, :]) / _WIDTHS[None, :, None])
    return found


def _updated(base: tuple[float, float], hits: float, count: float) -> tuple[float, float]:
    """The mean and weight of a beta belief after more trials."""
    total = base[1] + float(count)
    return (base[0] * base[1] + float(hits)) / total, total


class Feasibility:
    """P(status ok): the memory edge, corrected by trees on the knobs where failures are many.

    The trees start from the edge's log odds, and are monotone in the need for memory themselves.
    Where the need is known, failures of unknown cause are no examples of either outcome; they
    lower every row alike. Where it is not (a tuning table), every failure is one.
    """

    def __init__(self, prior: Feasibility | None = None, seed: int = 0, n_jobs: int = 1) -> None:
        self.edge: MemoryEdge = MemoryEdge(None if prior is None else prior.edge)
        self.booster: xgboost.Booster | None = None if prior is None else prior.booster
        self.unexplained: tuple[float, float] = PRIOR_UNEXPLAINED if prior is None else prior.unexplained
        self.seed, self.n_jobs = seed, n_jobs

    def fit(
        self, x: Array, status: NDArray[np.object_], matrix: Array | None = None, strength: float = 1.0
    ) -> Self:
        """n >= 0 trials: ``x`` (n,) log memory ratio, ``matrix`` (n, f) features for the trees, if any."""
        if not np.isfinite(x).any():
            status = np.where(status == "ok", "ok", "oom").astype(object)
        self.edge.fit(x, status, strength)
        known = np.isin(status, ("ok", "oom"))
        # of the trials whose memory sufficed, as far as anyone knows
        lost = strength * float((~known).sum())
        self.unexplained = _updated(self.unexplained, lost, strength * float((status != "oom").sum()))
        failures = int((status[known] != "ok").sum())
        if matrix is not None and matrix.shape[1] and MIN_FAILURES <= failures <= known.sum() - MIN_FAILURES:
            self.booster = self._train(x[known], (status[known] == "ok").astype(float), matrix[known])
        return self

    def _train(self, x: Array, ok: Array, matrix: Array) -> xgboost.Booster:
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
        data = xgboost.DMatrix(np.column_stack([x, matrix]), ok, base_margin=logit(self._edge(x)))
        return xgboost.train(params, data, num_boost_round=60)

    def _edge(self, x: Array) -> Array:
        return np.clip(self.edge.predict(x), 0.002, 0.998)

    def predict(self, x: Array, matrix: Array | None = None) -> Array:
        """(n,) probabilities; ``matrix`` as in :meth:`fit`."""
        margin = logit(self._edge(x))
        if self.booster is not None and matrix is not None:
            margin = margin + apply(self.booster, np.column_stack([x, matrix]))
        chance: Array = (1 - self.unexplained[0]) * expit(margin)
        return chance

    # -- keeping --------------------------------------------------------------------
    def save(self, folder: Path) -> dict[str, Any]:
        """Write ``feasibility.ubj`` where there are trees; returns the rest, for JSON."""
        state: dict[str, Any] = {"edge": self.edge.state(), "unexplained": self.unexplained, "trees": None}
        if self.booster is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.booster.save_model(folder / "feasibility.ubj")
            state |= {"trees": "feasibility.ubj", "features": self.booster.num_features()}
        return state

    @classmethod
    def restore(cls, folder: Path, state: dict[str, Any]) -> Self:
        model = cls()
        model.edge = MemoryEdge.restore(state["edge"])
        model.unexplained = tuple(state["unexplained"])
        if state["trees"] is not None:
            model.booster = load_booster(folder / state["trees"], state["features"])
        return model
