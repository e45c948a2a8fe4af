"""On measurements that others published: physics and trees together beat raw trees, and carry over."""

from __future__ import annotations

import os

import numpy as np
import polars as pl
import published
import pytest

from pretune.model import BoostedTrees, NoPhysics, TransferSurrogate, cross_validate
from pretune.model.evaluation import predictions, scores

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def mosaic() -> pl.DataFrame:
    if not published.data_folder().is_dir() and os.environ.get("CI") != "true":
        pytest.skip("no published measurements: set PRETUNE_SHARED")
    return published.read("mosaic_llm_foundry")


def test_physics_and_trees_beat_raw_trees_on_models_and_scales_held_out(mosaic: pl.DataFrame) -> None:
    groups = [f"{m} {n}" for m, n in zip(mosaic["model.name"], mosaic["platform.nodes"], strict=True)]
    ours, rows = cross_validate(BoostedTrees, mosaic, groups)
    raw, _ = cross_validate(lambda: BoostedTrees(NoPhysics()), mosaic, groups)
    assert len(rows) == len(mosaic)
    assert ours["median_absolute_relative_error"] < 0.05
    assert ours["median_absolute_relative_error"] < 0.5 * raw["median_absolute_relative_error"]
    assert ours["coverage"] > 0.85


def test_one_accelerator_is_predicted_from_the_other_and_three_trials(mosaic: pl.DataFrame) -> None:
    own = mosaic["platform.name"].str.starts_with("A100")
    target = mosaic.filter(own).with_columns(pl.lit("A100").alias("platform.name"))
    order = np.random.default_rng(0).permutation(len(target))
    known = pl.concat([mosaic.filter(~own), target[order[:3]]])
    found = scores(predictions(TransferSurrogate("A100").fit(known), target[order[3:]]))
    shuffled = known.with_columns(pl.col("tokens_per_s_per_device").shuffle(seed=0).over("platform.name"))
    by_chance = scores(predictions(TransferSurrogate("A100").fit(shuffled), target[order[3:]]))
    assert found["median_absolute_relative_error"] < 0.1
    assert found["rank_correlation"] > 0.98
    assert by_chance["median_absolute_relative_error"] > 2 * found["median_absolute_relative_error"]
