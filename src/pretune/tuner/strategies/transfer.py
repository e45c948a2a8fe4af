"""What other platforms learned, corrected by the trials here: expected improvement x chance to run."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import norm

from pretune.datasets.schema import to_table
from pretune.datasets.trial import Status, Trial
from pretune.model.base import INTERVAL, Array, Prediction, Predictor
from pretune.tuner.strategies.base import Strategy

if TYPE_CHECKING:
    from pretune.model import TransferSurrogate

# a trial that fails costs as much of the budget as one that runs: rows with less than this
# share of the best chance to run are left for last, however much they promise
LEAST_CHANCE = 0.5
PATIENCE = 1  # trials without a gain, after which one looks where the sources do not
GAIN = 0.02  # of log throughput, that counts as one


class TransferStrategy(Strategy):
    """Fits :class:`~pretune.model.TransferSurrogate` on history and trials, again after each tell.

    Until a trial ran, the highest mean x chance to run is chosen: the first trial is to be
    a good one, since no trial is there to improve on. Where trials bring nothing, the sources
    may be wrong about what is fast here, and never find it out among what they call fast: one
    trial is chosen without them (:func:`stalled`).
    """

    def __init__(self, candidates: pl.DataFrame, history: pl.DataFrame, seed: int = 0) -> None:
        super().__init__(candidates, history, seed)
        from pretune.model import TransferSurrogate

        target = candidates["platform.name"][0]
        self._surrogate = TransferSurrogate(target, seed=seed)  # learns its sources at the first fit only
        self._prediction: Prediction | None = None

    def tell(self, row: int, trial: Trial) -> None:
        super().tell(row, trial)
        self._prediction = None

    def choose(self) -> int:
        believed, told = self.predict(), self._log_speeds()
        if not self.pending:
            return next_row(self._surrogate, self.candidates, believed, self.open, told)
        supposed = self._supposed(believed)
        surrogate = copy(self._surrogate).fit(pl.concat([self._trials(), supposed], how="diagonal_relaxed"))
        told = np.append(told, believed.log_mean[self.pending])
        return next_row(surrogate, self.candidates, surrogate.predict(self.candidates), self.open, told)

    def _supposed(self, believed: Prediction) -> pl.DataFrame:
        """The pending rows as if they had brought what is believed of them, so that the next one differs:
        the kriging believer of Ginsbourger, Le Riche and Carraro 2010 (doi 10.1007/978-3-642-10701-6_6)."""
        return self.candidates[self.pending].with_columns(
            pl.lit(str(Status.OK)).alias("status"),
            pl.Series("tokens_per_s_per_device", believed.mean[self.pending]),
        )

    def predict(self) -> Prediction:
        if self._prediction is None:
            self._prediction = self._surrogate.fit(self._trials()).predict(self.candidates)
        return self._prediction

    def expected_gain(self) -> float | None:
        """By the sources or without them, whichever promises more: sources that are wrong see no gain."""
        best = np.fmax.reduce(self._log_speeds(), initial=np.nan)
        if not np.isfinite(best):
            return None
        believed = self.predict()
        beliefs = (believed, self._surrogate.unaided(self.candidates, believed))
        gains = [expected_improvement(each, best) * each.chance_to_run * self.open for each in beliefs]
        return float(np.expm1(np.max(gains)))

    def _trials(self) -> pl.DataFrame:
        return pl.concat([self.history, pl.DataFrame(to_table(self.told))], how="diagonal_relaxed")

    def _log_speeds(self) -> Array:
        """(k,) of what was told, NaN where it failed."""
        return np.log([trial.tokens_per_s_per_device or np.nan for trial in self.told])

    def fitted(self) -> Predictor:
        self.predict()  # a resumed session may have told everything and asked nothing
        return self._surrogate


def next_row(
    surrogate: TransferSurrogate,
    candidates: pl.DataFrame,
    believed: Prediction,
    open_: NDArray[np.bool_],
    told: Array,
) -> int:
    """The open row to try after (k,) trials with logs of throughput ``told``, NaN where one failed."""
    if stalled(told):
        believed = surrogate.unaided(candidates, believed)
    return most_promising(believed, open_, float(np.fmax.reduce(told, initial=np.nan)))


def stalled(told: Array) -> bool:
    """Whether the trials, (k,) logs of throughput, brought nothing for so long that the sources are in doubt.

    The patience is spent by a trial without them, and doubles when that brought nothing either: good
    sources lose about log2(k) of k trials to the doubt.
    """
    best, idle, patience = np.nan, 0, PATIENCE
    for value in told:
        doubted = idle >= patience
        gained = bool(np.isnan(best) or value > best + GAIN)
        patience = PATIENCE if gained else 2 * patience if doubted else patience
        idle = 0 if gained or doubted else idle + 1
        best = np.fmax(best, value)
    return idle >= patience


def most_promising(believed: Prediction, open_: NDArray[np.bool_], log_best: float) -> int:
    """The row to try next among those that are open, (n,); ``log_best`` is NaN until a trial ran."""
    gain = expected_improvement(believed, log_best) if np.isfinite(log_best) else believed.mean
    chance = np.where(open_, believed.chance_to_run, 0.0)
    likely = open_ & (chance >= LEAST_CHANCE * chance.max())
    return int(np.argmax(np.where(likely, gain * chance, -np.inf)))


def expected_improvement(believed: Prediction, log_best: float) -> Array:
    """(n,) expected gain in log throughput over ``log_best`` under a normal belief.

    Jones, Schonlau and Welch 1998 (doi 10.1023/A:1008306431147), eq. 15, for a maximum. The
    standard deviation is read off the interval.
    """
    width = np.log(believed.high) - np.log(believed.low)
    deviation = np.maximum(width / (2 * norm.ppf(0.5 + INTERVAL / 2)), 1e-9)
    z = (believed.log_mean - log_best) / deviation
    improvement: Array = deviation * (z * norm.cdf(z) + norm.pdf(z))
    return improvement
