"""A search on platforms whose truth is known: what misleading, sparse and unlike sources cost it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from synthetic_platforms import PLATFORMS, trials
from test_transfer import found_at_random, reversed_ranking

from pretune.model import NoPhysics, TransferSurrogate, TransformerPhysics
from pretune.model.base import Array, Baseline
from pretune.tuner.strategies.source_order import mean_relative_throughput
from pretune.tuner.strategies.transfer import next_row


def others(target: str, count: int, seed: int) -> pl.DataFrame:
    names = [name for name in PLATFORMS if name != target]
    return pl.concat([trials(name, count, seed) for name in names], how="diagonal")


def searched(target: str, known: pl.DataFrame, budget: int, baseline: Baseline | None = None) -> Array:
    """(budget,) the best so far over the platform's best."""
    table = trials(target)
    rows, speed = table.drop("status", "tokens_per_s_per_device", "trial_id"), speeds(table)
    surrogate, tried = TransferSurrogate(target, baseline), []
    for _ in range(budget):
        said = surrogate.fit(pl.concat([known, table[tried]], how="diagonal")).predict(rows)
        with np.errstate(divide="ignore"):
            told = np.log(speed[tried])
        open_ = ~np.isin(np.arange(len(rows)), tried)
        tried.append(next_row(surrogate, rows, said, open_, np.where(np.isfinite(told), told, np.nan)))
    return np.maximum.accumulate(speed[tried]) / speed.max()


def in_source_order(target: str, known: pl.DataFrame, budget: int) -> Array:
    table = trials(target)
    tried = np.argsort(-mean_relative_throughput(table, known), kind="stable")[:budget]
    return np.maximum.accumulate(speeds(table)[tried]) / speeds(table).max()


def speeds(table: pl.DataFrame) -> Array:
    return table["tokens_per_s_per_device"].fill_null(0).to_numpy()


@pytest.mark.parametrize("baseline", [NoPhysics(), TransformerPhysics()], ids=["knobs alone", "physics"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("target", ["slow", "half"])
def test_a_reversed_history_costs_a_few_trials(target: str, seed: int, baseline: Baseline) -> None:
    """Without physics, the sources' best are equally slow here: no trial contradicts them."""
    misled = searched(target, reversed_ranking(others(target, 60, seed)), 10, baseline)
    assert misled[-1] > 0.95
    assert misled[-1] > found_at_random(target, 10)[-1]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("target", ["slow", "half"])
def test_sparse_and_unlike_sources_are_worth_their_best_in_order(target: str, seed: int) -> None:
    """Ten of 256 configurations each, on platforms of other memories, links and speeds."""
    known = others(target, 10, seed)
    found, listed = searched(target, known, 6, NoPhysics()), in_source_order(target, known, 6)
    assert found.mean() > listed.mean() - 0.02
