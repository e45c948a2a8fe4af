"""The portability of a policy: its efficiencies on a set of platforms as one figure, and others beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hmean

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Of h platforms. ``harmonic``: Pennycook's metric, the harmonic mean of the efficiencies, 0 when one
    platform is unsupported (Pennycook, Sewall and Lee 2016, arXiv:1611.07409, eq. 1). ``arithmetic``: their
    mean over the supported ones (Marowka 2021, doi 10.1002/spe.3002). ``interval``: where 95 % of the
    harmonic means lie when measurements are drawn again from their errors; None where no error is known.
    """

    harmonic: float
    arithmetic: float
    worst: float
    supported: float
    interval: tuple[float, float] | None = None

    def asdict(self) -> dict[str, Any]:
        return {
            "harmonic": self.harmonic,
            "interval": self.interval and list(self.interval),
            "arithmetic": self.arithmetic,
            "worst": self.worst,
            "supported": self.supported,
        }


def scores(efficiencies: Sequence[float], draws: Array | None = None) -> Scores:
    """``efficiencies`` (h,) between 0 and 1, 0 where a platform is unsupported; ``draws`` (n, h) of them.

    Raises :class:`ValueError` for an empty set, a negative efficiency and one that is NaN.
    """
    each = np.asarray(efficiencies, dtype=float)
    if not len(each) or not (each >= 0).all():
        raise ValueError(f"efficiencies {list(efficiencies)}: give at least one, none below 0, none NaN")
    runs = each[each > 0]
    interval = None
    if draws is not None and len(draws):
        low, high = np.quantile(harmonic(draws), (0.025, 0.975))
        interval = (float(low), float(high))
    return Scores(
        float(harmonic(each)),
        float(runs.mean()) if len(runs) else 0.0,
        float(each.min()),
        len(runs) / len(each),
        interval,
    )


def harmonic(efficiencies: Array) -> Array:
    """(..., h) to (...): the harmonic mean over the last axis, 0 where one of them is 0."""
    runs = (efficiencies > 0).all(axis=-1)
    means = hmean(np.where(efficiencies > 0, efficiencies, 1.0), axis=-1)
    return np.asarray(np.where(runs, means, 0.0))


def cascade(efficiencies: Sequence[float]) -> list[tuple[float, float]]:
    """After 1, 2, ... platforms, the best first: the efficiency on the last one, the harmonic mean so far.

    Sewall et al. 2020, Interpreting and Visualizing Performance Portability Metrics (P3HPC at SC'20).
    """
    ordered = np.sort(np.asarray(efficiencies, dtype=float))[::-1]
    return [(float(ordered[k]), float(harmonic(ordered[: k + 1]))) for k in range(len(ordered))]
