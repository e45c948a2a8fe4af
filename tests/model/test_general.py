"""The surrogate of a whole history: newcomers are told apart, and a few of their trials go a long way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from synthetic_platforms import candidates, history, trials

from pretune.model import Surrogate
from pretune.model.evaluation import predictions, scores

SOURCES = history("slow", 60)


def after(own: int, sources: pl.DataFrame = SOURCES, slower: float = 0.7) -> dict[str, float]:
    """Scores on a slow cluster, whose software is slow too, of which ``own`` trials are known."""
    target = trials("slow", seed=5).with_columns(pl.col("tokens_per_s_per_device") * slower)
    known = pl.concat([sources, target[:own]], how="diagonal")
    return scores(predictions(Surrogate().fit(known), target[own:]))


def test_a_few_trials_of_a_newcomer_say_how_it_differs() -> None:
    none, some = after(0), after(5)
    assert some["median_absolute_relative_error"] < 0.6 * none["median_absolute_relative_error"]
    assert some["rank_correlation"] >= none["rank_correlation"] - 0.02


def test_history_is_worth_more_than_the_trials_alone() -> None:
    assert after(5)["rank_correlation"] > after(5, SOURCES.clear())["rank_correlation"]


@pytest.mark.parametrize(("own", "slower"), [(0, 0.85), (1, 0.7), (5, 0.7)])
def test_intervals_cover_newcomers(own: int, slower: float) -> None:
    assert after(own, slower=slower)["coverage"] >= 0.8


def test_nothing_is_new_in_a_history_of_few_trials_each() -> None:
    few = pl.concat([trials(name, 6) for name in ("loopback", "half", "gigabit")], how="diagonal")
    surrogate = Surrogate().fit(few)
    assert len(surrogate.own_) == 0
    assert np.isfinite(surrogate.predict(few).log_mean).all()


def test_what_is_well_known_is_left_to_the_trees() -> None:
    surrogate = Surrogate().fit(pl.concat([SOURCES, trials("slow", 5)], how="diagonal"))
    known = candidates("loopback")
    assert surrogate.predict(known).log_mean.tolist() == surrogate.trees_.predict(known).log_mean.tolist()


def test_it_is_what_it_was_after_loading(tmp_path: Path) -> None:
    surrogate = Surrogate().fit(pl.concat([SOURCES, trials("slow", 5)], how="diagonal"))
    surrogate.save(tmp_path)
    before, loaded = surrogate.predict(candidates("slow")), Surrogate.load(tmp_path)
    again = loaded.predict(candidates("slow"))
    assert again.log_mean == pytest.approx(before.log_mean, abs=1e-4)
    assert again.high == pytest.approx(before.high, rel=1e-3)
    assert again.chance_to_run == pytest.approx(before.chance_to_run, abs=1e-3)


def test_failures_of_a_newcomer_are_heard() -> None:
    failed = trials("gigabit", 12).with_columns(
        pl.lit("crash").alias("status"), pl.lit(None, pl.Float64).alias("tokens_per_s_per_device")
    )
    history_ = pl.concat([history("gigabit", 60), failed], how="diagonal")
    before = Surrogate().fit(history("gigabit", 60)).predict(candidates("gigabit")).chance_to_run
    after_ = Surrogate().fit(history_).predict(candidates("gigabit")).chance_to_run
    assert after_.mean() < before.mean() - 0.05


def test_a_newcomer_whose_trials_agree_is_believed_however_far_off() -> None:
    assert after(6, slower=0.15)["median_absolute_relative_error"] < 0.3


def test_the_type_of_a_column_is_no_news() -> None:
    """Frames from elsewhere have floats for integers, NaN for null."""
    surrogate = Surrogate().fit(SOURCES)
    frame = candidates("loopback")
    elsewhere = frame.with_columns(
        pl.col("model.hidden_size").cast(pl.Float64), pl.lit(float("nan")).alias("model.kv_heads")
    )
    assert surrogate.predict(elsewhere).high.tolist() == surrogate.predict(frame).high.tolist()


def test_models_of_unknown_shape_are_told_apart_by_their_names() -> None:
    """Physics says nothing of them, but that the new one is slow."""

    def unnamed(name: str, frame: pl.DataFrame) -> pl.DataFrame:
        shape = pl.col("^model\\..*$").exclude("model.name")
        shapeless = frame.drop(frame.select(shape).columns)
        return shapeless.with_columns(pl.lit(name).alias("model.name"))

    known = unnamed("old", trials("half", 60))
    slow = unnamed("new", trials("half", seed=5)).with_columns(pl.col("tokens_per_s_per_device") * 0.4)
    surrogate = Surrogate().fit(pl.concat([known, slow[:5]], how="diagonal"))
    assert len(surrogate.own_) == 5
    missed = scores(predictions(surrogate, slow[5:]))["median_absolute_relative_error"]
    assert (
        missed < 0.5 * scores(predictions(Surrogate().fit(known), slow[5:]))["median_absolute_relative_error"]
    )


def test_where_many_are_few_the_fewest_are_newcomers() -> None:
    """Every platform has fewer trials than a newcomer may have."""
    few = pl.concat([trials(name, 7) for name in ("loopback", "half", "gigabit", "slow")], how="diagonal")
    one = trials("capped").filter(status="ok")[:1]
    assert Surrogate().fit(pl.concat([few, one], how="diagonal")).own_["platform.name"].to_list() == [
        "capped"
    ]
