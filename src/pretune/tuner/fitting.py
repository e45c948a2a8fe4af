"""One surrogate per platform of a history: cross-validated, saved, and told to the tracker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from pretune.datasets.schema import to_table
from pretune.datasets.trial import Trial
from pretune.errors import InputError
from pretune.mlflow_config.base import Tracker
from pretune.model import BoostedTrees, cross_validate
from pretune.model.base import Predictor
from pretune.model.evaluation import scores
from pretune.model.plots import parity_plot, residual_plot
from pretune.tuner.runner import read_predicted

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
        tracker.fit_begun(name, {"platform": name, "folds": FOLDS, "seed": seed, **_learned_from(trials)})
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
    return errors, _kept(rows, folder)


def track_session_surrogate(
    surrogate: Predictor, trials: list[Trial], runs: Path, out: Path, tracker: Tracker
) -> None:
    """Save what a session learned under ``out``, and tell the tracker how well it foretold the trials.

    Its errors are those of the predictions that were made before each trial ran (kept beside
    the trial's sheet under ``runs``).
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = pl.DataFrame([row for trial in trials if (row := _foretold(trial, runs))])
    learned = _learned_from(pl.DataFrame(to_table(trials)))
    name = str(trials[0].session_id)
    tracker.fit_begun(name, {"platform": trials[0].platform.name, "kind": "transfer", **learned})
    surrogate.save(out / "model")
    files = _kept(rows, out) if len(rows) else []
    tracker.fit_ended(name, scores(rows) if len(rows) else {}, files, out / "model")


def _foretold(trial: Trial, runs: Path) -> dict[str, Any] | None:
    predicted = read_predicted(runs / trial.trial_id)
    if predicted is None or not trial.ok:
        return None
    return {
        "trial_id": trial.trial_id,
        "measured": trial.tokens_per_s_per_device,
        "predicted": predicted.tokens_per_s_per_device,
        "low": predicted.low,
        "high": predicted.high,
        "chance_to_run": predicted.chance_to_run,
    }


def _learned_from(trials: pl.DataFrame) -> dict[str, Any]:
    """What tells one fit from another: the trials that it learned from."""
    ids = "\n".join(trials["trial_id"].to_list())
    return {"trials": len(trials), "trials_digest": hashlib.sha256(ids.encode()).hexdigest()[:16]}


def _kept(rows: pl.DataFrame, folder: Path) -> list[Path]:
    """Predictions of trials that were not learned from, and their plots where matplotlib is installed."""
    files = [folder / "predictions.parquet"]
    rows.write_parquet(files[0])
    if find_spec("matplotlib") and len(rows):
        files += [
            parity_plot(rows, folder / "parity.png"),
            residual_plot(rows, folder / "residuals.png"),
        ]
    return files
