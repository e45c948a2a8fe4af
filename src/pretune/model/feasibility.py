"""The chance that a configuration runs: what needs more memory is never likelier to fit."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pretune.model.base import Array

# Grid of the posterior: log of true need over predicted need at which half of the trials fail,
# and the width of the edge. The physics may be off by a factor, in either direction.
_EDGES = np.linspace(-2.0, 2.0, 81)
_WIDTHS = np.array([0.03, 0.08, 0.2, 0.4])
PRIOR_EDGE, PRIOR_SD = 0.0, 0.45
UNEXPLAINED = (0.5, 9.5)  # pseudo-counts of failures of unknown cause, and of others
PER_ROW = 0.02  # no outcome is impossible: a share of trials that memory does not explain


class Feasibility:
    """P(status ok) from the predicted memory need over capacity, log scale, (n,); NaN: unknown.

    ``P(fits) = mean over (edge, width) of expit((edge - x) / width)`` under the posterior on a
    grid, so that it falls in x whatever was seen, needs no minimum of rows and is calibrated
    by the prior where there are none. Only ``ok`` and ``oom`` teach it; failures of unknown
    cause lower every row alike, since nobody knows what they mean.
    """

    def __init__(self, prior: Array | None = None) -> None:
        """``prior``: (81, 4) log weights of an earlier posterior; None: the physics may be 45 % off."""
        self.prior = prior

    def fit(self, x: Array, status: NDArray[np.str_], strength: float = 1.0) -> Self:
        """Learn from n trials; ``strength`` below 1 discounts the trials of other platforms."""
        log_weight = self._prior() if self.prior is None else self.prior.copy()
        known = np.isfinite(x)
        for value in ("ok", "oom"):
            at = x[known & (status == value)]
            if len(at):
                fits = self._fits(at)  # (81, 4, n)
                chance = fits if value == "ok" else 1 - fits
                log_weight += strength * np.log(PER_ROW / 2 + (1 - PER_ROW) * chance).sum(axis=2)
        self.log_weight_ = log_weight - log_weight.max()
        explained = np.isin(status, ("ok", "oom")).sum() * strength
        self.unexplained_ = (UNEXPLAINED[0] + strength * len(status) - explained) / (
            sum(UNEXPLAINED) + strength * len(status)
        )
        ok = (status == "ok").sum() * strength
        self.base_ = (0.9 * 2 + ok) / (2 + explained)  # where the need for memory is unknown
        return self

    def predict(self, x: Array) -> Array:
        """(n,) probabilities."""
        fine = np.linspace(-4.0, 4.0, 801)
        weight = np.exp(self.log_weight_)
        curve = (self._fits(fine) * (weight / weight.sum())[:, :, None]).sum(axis=(0, 1))
        fits = np.interp(np.nan_to_num(x, nan=0.0), fine, curve)
        return (1 - self.unexplained_) * np.where(np.isfinite(x), fits, self.base_)

    @staticmethod
    def _prior() -> Array:
        edge = -0.5 * ((_EDGES - PRIOR_EDGE) / PRIOR_SD) ** 2
        return np.repeat(edge[:, None], len(_WIDTHS), axis=1)

    @staticmethod
    def _fits(x: Array) -> Array:
        return expit((_EDGES[:, None, None] - x[None, None, :]) / _WIDTHS[None, :, None])

    def state(self) -> dict[str, Any]:
        return {
            "log_weight": self.log_weight_.tolist(),
            "unexplained": float(self.unexplained_),
            "base": float(self.base_),
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        model = cls()
        model.log_weight_ = np.array(state["log_weight"])
        model.unexplained_, model.base_ = state["unexplained"], state["base"]
        return model
