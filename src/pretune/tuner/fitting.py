"""One surrogate per platform of a history: cross-validated, saved, and told to the tracker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
from sklearn.base import clone

from pretune.datasets.schema import to_table
from pretune.datasets.trial import Trial
from pretune.errors import InputError
from pretune.mlflow_config.base import Tracker
from pretune.model import BoostedTrees, cross_validate
from pretune.model.base import Predictor
from pretune.model.card import Card
from pretune.model.evaluation import predictions, scores
from pretune.model.plots import attribution_plot, parity_plot, residual_plot
from pretune.tuner.runner import read_predicted

FOLDS = 5


def fit_platforms(
    history: pl.DataFrame, out: Path, tracker: Tracker, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Fit each platform in turn; yields its name, trials, cross-validated ``errors``, ``folder``, ``card``.

    ``out/<platform>/`` holds the surrogate (``model/``), its model card (``card.md`` and ``card.json``),
    the out-of-fold predictions (``predictions.parquet``) and, where matplotlib is installed, plots.
    ``errors`` is None where there are too few trials to cross-validate.
    """
    for (platform,), trials in history.sort("trial_id").group_by("platform.name", maintain_order=True):
        name, folder = str(platform), out / str(platform)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"platform": name, "folds": FOLDS, "seed": seed, **_learned_from(trials)}
        tracker.fit_begun(name, settings)
        fitted = BoostedTrees(seed=seed).fit(trials)
        fitted.save(folder / "model")
        errors, held_out = _cross_validated(trials, fitted)
        card = Card.of(name, fitted, trials, held_out, settings)
        files = [*_kept(held_out, folder), *_attributed(card, folder)]
        cards = card.save(folder, [file for file in files if file.suffix == ".png"])
        tracker.fit_ended(name, errors or {}, [*cards, *files], folder / "model")
        yield {
            "platform": name,
            "trials": len(trials),
            "errors": errors,
            "folder": str(folder),
            "card": str(cards[0]),
            "card_json": str(cards[1]),
        }


def _cross_validated(
    trials: pl.DataFrame, fitted: BoostedTrees
) -> tuple[dict[str, float] | None, pl.DataFrame]:
    """Errors of unfitted twins of ``fitted``, and their predictions; None and no row where there is but
    one configuration, so that nothing can be held out."""
    try:
        return cross_validate(lambda: clone(fitted), trials, folds=FOLDS, seed=fitted.seed)
    except InputError:
        return None, predictions(fitted, trials.clear())


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


def _attributed(card: Card, folder: Path) -> list[Path]:
    if not find_spec("matplotlib") or not card.attributions:
        return []
    return [attribution_plot(card.attributions, folder / "attributions.png")]
