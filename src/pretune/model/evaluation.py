"""How good a surrogate is on rows it has not seen: cross-validation in which repeats never leak."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from pretune.errors import InputError
from pretune.model.base import Array, Predictor
from pretune.model.columns import configurations, device_counts, numbers, ran, text, workload_names


def cross_validate(
    surrogate: Callable[[], Predictor],
    frame: pl.DataFrame,
    groups: list[str] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> tuple[dict[str, float], pl.DataFrame]:
    """Fit on all folds but one and predict that one, ``folds`` times.

    ``surrogate()`` gives a new, unfitted one. ``groups`` (n,) share no fold; by default the
    configurations, so that a repeat is never predicted from its twin. Failed trials are learned from
    and not scored. Returns the :func:`scores`, and one row per scored trial.

    Raises :class:`InputError` when there are fewer than two groups.
    """
    keys = np.unique(configurations(frame) if groups is None else groups, return_inverse=True)[1]
    count = int(keys.max()) + 1 if len(keys) else 0
    folds = min(folds, count)
    if folds < 2:
        raise InputError(f"trials: {count} configuration(s) cannot be cross-validated; record at least 2")
    fold = np.random.default_rng(seed).permutation(count)[keys] % folds
    parts = []
    for k in range(folds):
        test = pl.Series(fold == k, dtype=pl.Boolean)
        part = predictions(surrogate().fit(frame.filter(~test)), frame.filter(test))
        parts.append(part.with_columns(fold=pl.lit(k)))
    rows = pl.concat(parts)
    return scores(rows), rows


def predictions(fitted: Predictor, frame: pl.DataFrame) -> pl.DataFrame:
    """One row per trial of ``frame`` that ran: measured, predicted, the interval, and the chance to run."""
    test = frame.filter(pl.Series(ran(frame), dtype=pl.Boolean))
    said = fitted.predict(test)
    return pl.DataFrame(
        {
            "trial_id": text(test, "trial_id"),
            "platform": text(test, "platform.name"),
            "model": text(test, "model.name"),
            "workload": workload_names(test),
            "devices": device_counts(test),
            "measured": numbers(test, "tokens_per_s_per_device"),
            "predicted": said.mean,
            "low": said.low,
            "high": said.high,
            "chance_to_run": said.chance_to_run,
        }
    )


def scores(rows: pl.DataFrame) -> dict[str, float]:
    """Median and mean absolute relative error, interval coverage and width, rank correlation.

    The width is the median of high over low; the rank correlation is Spearman's.
    """
    measured, predicted = rows["measured"].to_numpy(), rows["predicted"].to_numpy()
    if not len(rows):
        return {"rows": 0.0}
    error = np.abs(predicted / measured - 1)
    low, high = rows["low"].to_numpy(), rows["high"].to_numpy()
    return {
        "rows": float(len(rows)),
        "median_absolute_relative_error": float(np.median(error)),
        "mean_absolute_relative_error": float(error.mean()),
        "coverage": float(((low <= measured) & (measured <= high)).mean()),
        "median_interval_ratio": float(np.median(high / np.maximum(low, 1e-300))),
        "rank_correlation": _spearman(measured, predicted),
    }


def _spearman(a: Array, b: Array) -> float:
    from scipy.stats import spearmanr

    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)
