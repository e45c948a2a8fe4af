"""Rows that no tree can tell apart are asked about once, and nothing is lost by it."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from pretune.model.boosting import apply, cells, thresholds
from pretune.model.columns import distinct

ROWS, FEATURES = 60, 3


@pytest.fixture(scope="module")
def boosters():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES))
    label = x[:, 1] ** 2 + x[:, 0]
    x[::7, 1] = np.nan
    return [xgboost.train({"max_depth": depth}, xgboost.DMatrix(x, label), 5) for depth in (2, 3)]


@given(seed=st.integers(0, 2**31), unknown=st.floats(0, 1), share_at_a_split=st.floats(0, 1))
def test_rows_of_one_cell_reach_the_same_leaves(boosters, seed, unknown, share_at_a_split):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, FEATURES))
    splits = [thresholds(booster) for booster in boosters]
    for split in splits:  # the very values that trees compare with
        for feature, values in split.items():
            at = rng.random(ROWS) < share_at_a_split / 2
            x[at, feature] = rng.choice(values, at.sum())
    x[rng.random(x.shape) < unknown / 2] = np.nan
    first, kind = distinct(cells(splits, x), ROWS)
    for booster in boosters:
        assert (apply(booster, x[first])[kind] == apply(booster, x)).all()


def test_far_fewer_cells_than_rows(boosters):
    x = np.random.default_rng(1).normal(size=(20_000, FEATURES))
    first, kind = distinct(cells([thresholds(boosters[0])], x), len(x))
    assert len(first) < len(x) / 10
    assert len(kind) == len(x)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_without_a_column_all_rows_are_alike(count):
    first, kind = distinct([], count)
    assert len(first) == min(count, 1)
    assert kind.tolist() == [0] * count
    assert cells([thresholds(None)], np.zeros((count, 2))) == []
