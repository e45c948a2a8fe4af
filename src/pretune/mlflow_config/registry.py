"""The registry: a version for each fit of a platform's surrogate, and which version is the champion."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.stats import ttest_1samp

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
PREDICTIONS = "predictions.parquet"  # of trials that a fit held out, among its run's artifacts
COMPARED = "pretune.compared"  # the tag that says why a version is the champion, or is not
LEAST_TRIALS = 8  # that two fits both held out; of fewer nothing can be said
LEVEL = 0.05  # of the test that the new one is better


@dataclass(frozen=True)
class Comparison:
    """Whether a new surrogate is better than the champion beyond noise, and why, in a line."""

    better: bool
    why: str


def registered_name(platform: str) -> str:
    """What a platform's surrogates are registered as."""
    return f"pretune-{platform}"


def register(client: MlflowClient, run: Run, platform: str, model_id: str, held_out: Path) -> str:
    """Make the logged model of a fit's ``run`` a version of its platform's surrogate; returns the version.

    The alias ``champion`` moves to it only when it is better on trials that both it and the champion held
    out, ``held_out`` being its predictions of those; the first version is the champion. Told twice,
    registered once.
    """
    name = registered_name(platform)
    known = list(client.search_model_versions(f"name = '{name}'"))
    if not known:
        _create(client, name)
    mine = [version for version in known if version.run_id == run.info.run_id]
    made = mine[0] if mine else _version(client, name, run, model_id)
    if COMPARED in made.tags:
        return str(made.version)
    champion = client.get_registered_model(name).aliases.get(CHAMPION)
    if champion is None:
        found = Comparison(True, "the first version")
    else:
        other = client.get_model_version(name, champion)
        with tempfile.TemporaryDirectory() as folder:
            theirs = client.download_artifacts(other.run_id, PREDICTIONS, folder)
            found = compared(pl.read_parquet(held_out), pl.read_parquet(theirs), champion)
    if found.better:
        client.set_registered_model_alias(name, CHAMPION, made.version)
    client.set_model_version_tag(name, made.version, COMPARED, found.why)
    return str(made.version)


def _version(client: MlflowClient, name: str, run: Run, model_id: str) -> ModelVersion:
    # the place itself: MLflow would look up "models:/ID" in the process's own store, not in this client's
    source = client.get_logged_model(model_id).artifact_location
    return client.create_model_version(name, source, run.info.run_id, model_id=model_id)


def _create(client: MlflowClient, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(
            name, description="Throughput of this platform, by pretune's surrogate."
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another fit made it meanwhile
            raise


def compared(new: pl.DataFrame, old: pl.DataFrame, version: str | int) -> Comparison:
    """By absolute errors of log throughput on the trials that both held out: one-sided paired t-test.

    ``new`` and ``old`` have ``trial_id``, ``measured`` and ``predicted``; ``version`` is the champion's.
    """
    both = new.join(old, on="trial_id", suffix="_old")
    if len(both) < LEAST_TRIALS:
        return Comparison(
            False, f"{len(both)} trials were held out by champion {version} too; {LEAST_TRIALS} would tell"
        )
    measured = np.log(both["measured"].to_numpy())
    errors, theirs = (np.abs(np.log(both[n].to_numpy()) - measured) for n in ("predicted", "predicted_old"))
    gain = theirs - errors
    p = float(ttest_1samp(gain, 0.0, alternative="greater").pvalue) if np.ptp(gain) > 0 else 1.0
    better = p < LEVEL
    figures = f"mean error {errors.mean():.3f} against {theirs.mean():.3f} of champion {version}"
    return Comparison(better, f"{figures} on {len(both)} trials that both held out (p = {p:.2g})")
