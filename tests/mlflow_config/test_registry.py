"""Versions of a surrogate in MLflow's registry: the champion moves only to what is better beyond noise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pretune.collector.agent import free_port
from pretune.datasets import TrialStore
from pretune.mlflow_config import registry, tracker
from pretune.mlflow_config.connection import speaking
from pretune.model import RandomSurrogate


def held_out(error: float, trials: int = 40, seed: int = 0) -> pl.DataFrame:
    """Predictions that miss by about ``error`` of log throughput."""
    rng = np.random.default_rng(seed)
    measured = np.exp(rng.normal(7, 0.5, 100))[:trials]
    off = error * np.abs(rng.normal(0, 1, 100))[:trials]
    ids = [f"t{i}" for i in range(trials)]
    return pl.DataFrame({"trial_id": ids, "measured": measured, "predicted": measured * np.exp(off)})


@pytest.mark.parametrize(
    ("new", "old", "better"),
    [
        (held_out(0.05), held_out(0.2, seed=1), True),
        (held_out(0.2), held_out(0.05, seed=1), False),
        (held_out(0.2), held_out(0.2), False),
        (held_out(0.1, seed=2), held_out(0.1, seed=3), False),
        (held_out(0.01, trials=5), held_out(0.5, seed=1), False),
    ],
    ids=["better", "worse", "the same", "noise", "too few"],
)
def test_better_is_beyond_noise_on_trials_that_both_held_out(new, old, better):
    measured = old.select("trial_id", pl.col("measured"))
    new = (
        new.drop("measured")
        .join(measured, on="trial_id")
        .with_columns(predicted=pl.col("predicted") / new["measured"] * pl.col("measured"))
    )
    found = registry.compared(new, old, 3)
    assert found.better is better, found.why
    assert "champion 3" in found.why


@pytest.fixture
def saved(make_trial, tmp_path) -> Path:
    trials = [make_trial(f"t{i}", knobs={"zero_stage": i % 4}) for i in range(8)]
    TrialStore(tmp_path / "history").append(trials)
    RandomSurrogate().fit(TrialStore(tmp_path / "history").frame()).save(tmp_path / "model")
    return tmp_path / "model"


def fitted(out: Path, model: Path, rows: pl.DataFrame, seed: int) -> None:
    """Told to a tracker of its own, as one run of ``pretune fit`` does."""
    told = tracker(None, out)
    told.fit_begun("two-ranks", {"seed": seed})
    folder = out / str(seed)
    folder.mkdir(exist_ok=True)
    rows.write_parquet(folder / registry.PREDICTIONS)
    told.fit_ended("two-ranks", {}, [folder / registry.PREDICTIONS], model)


def test_each_fit_is_a_version_and_the_champion_moves_when_one_is_better(out, saved):
    from mlflow import MlflowClient

    first, worse, better = (
        held_out(0.1),
        held_out(0.1).with_columns(pl.col("predicted") * 1.2),
        held_out(0.02),
    )
    champions = []
    with speaking("the test"):
        client = MlflowClient(f"sqlite:///{out / 'mlflow.db'}")
    for seed, rows in enumerate((first, worse, better)):
        fitted(out, saved, rows, seed)
        fitted(out, saved, rows, seed)  # told twice
        with speaking("the test"):
            champions.append(
                client.get_model_version_by_alias("pretune-two-ranks", registry.CHAMPION).version
            )
    with speaking("the test"):
        versions = client.search_model_versions("name = 'pretune-two-ranks'")
    assert [int(version) for version in champions] == [1, 1, 3]
    assert len(versions) == 3
    assert all(version.tags[registry.COMPARED] for version in versions)


@pytest.mark.long
def test_the_champion_answers_a_request(out, saved):
    fitted(out, saved, held_out(0.1), 0)
    found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # MLflow calls its server by name
    environment = {**os.environ, "PATH": found, "MLFLOW_TRACKING_URI": f"sqlite:///{out / 'mlflow.db'}"}
    port = str(free_port())
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/pretune-two-ranks@champion"]
    command += ["--env-manager", "local", "--port", port]
    with subprocess.Popen(command, env=environment, cwd=out, start_new_session=True) as server:
        try:
            row = TrialStore(saved.parent / "history").frame().head(2)
            columns = [name for name in row.columns if name.split(".")[0] in ("knob", "model", "workload")]
            columns += [name for name in row.columns if name.split(".")[0] in ("platform", "accelerator")]
            shown = row.select("framework", *columns)
            shown = shown.select(name for name in shown.columns if shown[name].null_count() < len(shown))
            answer = asked(
                server, f"http://127.0.0.1:{port}/invocations", {"dataframe_records": shown.to_dicts()}
            )
        finally:
            os.killpg(server.pid, 15)
    assert len(answer["predictions"]) == 2
    assert all(each["tokens_per_s_per_device"] > 0 for each in answer["predictions"])


def asked(server: subprocess.Popen, url: str, data: dict[str, object]) -> dict[str, list[dict[str, float]]]:
    """The answer of a server that may still be starting."""
    request = urllib.request.Request(url, json.dumps(data).encode(), {"Content-Type": "application/json"})
    while server.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            pytest.fail(error.read().decode()[:2000])
        except OSError:
            time.sleep(1)
    pytest.fail("the server ended before it answered")
