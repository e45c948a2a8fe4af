"""One surrogate per platform of a history: cross-validated, saved, and told to the tracker."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from pretune.errors import InputError
from pretune.mlflow_config.base import Tracker
from pretune.model import BoostedTrees, cross_validate

FOLDS = 5


def fit_platforms(
    history: pl.DataFrame, out: Path, tracker: Tracker, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Fit each platform in turn; yields its name, trials, cross-validated ``errors`` and ``folder``.

    ``out/<platform>/`` holds the surrogate (``model/``), the out-of-fold predictions
    (``predictions.parquet``) and, where matplotlib is installed, their plot. ``errors`` is
    None where there are too few trials to cross-validate.
    """
    for (platform,), trials in history.sort("trial_id").group_by("platform.name", maintain_order=True):
        name, folder = str(platform), out / str(platform)
        folder.mkdir(parents=True, exist_ok=True)
        tracker.fit_begun(name, {"platform": name, "trials": len(trials), "folds": FOLDS, "seed": seed})
        errors, files = _cross_validated(trials, folder, seed)
        BoostedTrees(seed=seed).fit(trials).save(folder / "model")
        tracker.fit_ended(name, errors or {}, files, folder / "model")
        yield {"platform": name, "trials": len(trials), "errors": errors, "folder": str(folder)}


def _cross_validated(
    trials: pl.DataFrame, folder: Path, seed: int
) -> tuple[dict[str, float] | None, list[Path]]:
    try:
        errors, rows = cross_validate(lambda: BoostedTrees(seed=seed), trials, folds=FOLDS, seed=seed)
    except InputError:  # one configuration: nothing to hold out
        return None, []
    rows.write_parquet(folder / "predictions.parquet")
    files = [folder / "predictions.parquet"]
    if find_spec("matplotlib") and len(rows):
        files.append(_plot(rows, folder / "predictions.png"))
    return errors, files


def _plot(rows: pl.DataFrame, path: Path) -> Path:
    """Predicted over measured throughput, with the intervals, on log scales."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    measured, predicted = rows["measured"].to_numpy(), rows["predicted"].to_numpy()
    reach = [predicted - rows["low"].to_numpy(), rows["high"].to_numpy() - predicted]
    axes.errorbar(measured, predicted, yerr=reach, fmt="o", markersize=3, elinewidth=0.5)
    axes.axline((measured[0], measured[0]), (2 * measured[0], 2 * measured[0]), color="grey", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="measured tokens/s per device")
    axes.set_ylabel("predicted out of fold, 90 % interval")
    figure.savefig(path, dpi=120)
    return path
