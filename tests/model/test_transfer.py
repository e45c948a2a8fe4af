"""Transfer: history helps, its loss hurts, its lies cost little, and a measurement beats a guess."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
from synthetic_platforms import PLATFORMS, candidates, history, trials

from pretune.errors import InputError
from pretune.model import NoPhysics, TransferSurrogate, TransformerPhysics
from pretune.model.evaluation import predictions, scores
from pretune.model.sources import PHYSICS

TARGETS = ["slow", "half", "capped"]


def found(target: str, known: pl.DataFrame, budget: int, baseline: NoPhysics | None = None) -> np.ndarray:
    """(budget,) the best so far over the platform's best, trials chosen by the surrogate alone: half-way up
    the interval (the mean for the first trial) times the chance to run."""
    table = trials(target)
    rows = table.drop("status", "tokens_per_s_per_device", "trial_id")
    speed = table["tokens_per_s_per_device"].fill_null(0).to_numpy()
    surrogate, tried = TransferSurrogate(target, baseline), []
    for trial in range(budget):
        said = surrogate.fit(pl.concat([known, table[tried]], how="diagonal")).predict(rows)
        worth = (said.mean if trial == 0 else np.sqrt(said.mean * said.high)) * said.chance_to_run
        worth[tried] = -np.inf
        tried.append(int(np.argmax(worth)))
    return np.maximum.accumulate(speed[tried]) / speed.max()


def found_at_random(target: str, budget: int) -> np.ndarray:
    speed = trials(target)["tokens_per_s_per_device"].fill_null(0).to_numpy()
    rng = np.random.default_rng(0)
    picked = np.array([rng.permutation(len(speed))[:budget] for _ in range(400)])
    return np.maximum.accumulate(speed[picked], axis=1).mean(axis=0) / speed.max()


def reversed_ranking(known: pl.DataFrame) -> pl.DataFrame:
    """Each platform's fastest configuration with its slowest speed, and so on; failures left out."""
    ran = known.filter(pl.col("status") == "ok").sort("platform.name", "tokens_per_s_per_device")
    backwards = pl.col("tokens_per_s_per_device").reverse().over("platform.name")
    return ran.with_columns(backwards).sort("trial_id")


def test_history_beats_random_and_none() -> None:
    with_it = np.array([found(target, history(target), 4) for target in TARGETS])
    without = np.array([found(target, history(target).head(0), 4) for target in TARGETS])
    at_random = np.array([found_at_random(target, 4) for target in TARGETS])
    assert (with_it > at_random).all()
    assert with_it[:, 0].mean() > 0.85
    assert with_it.mean(axis=0) == pytest.approx(np.maximum(with_it, without).mean(axis=0), abs=0.02)
    assert with_it[:, 0].mean() > without[:, 0].mean() + 0.02


@pytest.mark.parametrize("target", TARGETS)
def test_predictions_get_worse_without_history(target: str) -> None:
    own, rest = trials(target, seed=1)[:1], trials(target, seed=1)[1:]
    with_it = scores(
        predictions(TransferSurrogate(target).fit(pl.concat([history(target), own], how="diagonal")), rest)
    )
    without = scores(predictions(TransferSurrogate(target).fit(own), rest))
    assert with_it["median_absolute_relative_error"] < 0.75 * without["median_absolute_relative_error"]
    assert with_it["rank_correlation"] > without["rank_correlation"]
    assert with_it["coverage"] > 0.8


@pytest.mark.parametrize("target", ["slow", "half"])
def test_a_reversed_history_costs_a_few_trials(target: str) -> None:
    misled = found(target, reversed_ranking(history(target)), 8)
    assert misled[-1] > 0.95
    assert misled[-1] > found_at_random(target, 8)[-1]


def test_trials_turn_the_weight_away_from_sources_that_mislead() -> None:
    liars, own = reversed_ranking(history("half")), trials("half", 12)
    before = TransferSurrogate("half").fit(liars).predict(candidates("half")).provenance
    after = TransferSurrogate("half").fit(pl.concat([liars, own], how="diagonal")).predict(candidates("half"))
    assert before[PHYSICS] == pytest.approx(0.1)
    assert after.provenance[PHYSICS] > 0.6


def test_unaided_it_heeds_no_ranking_of_the_sources_but_the_trials() -> None:
    rows, own, ran = (
        candidates("half"),
        trials("half", 6),
        trials("gigabit", 60).filter(pl.col("status") == "ok"),
    )
    expected = []
    for known in (ran, reversed_ranking(ran)):
        surrogate = TransferSurrogate("half", NoPhysics()).fit(pl.concat([known, own], how="diagonal"))
        believed = surrogate.predict(rows)
        expected.append((believed.log_mean, surrogate.unaided(rows, believed).log_mean))
    (told, alone), (lied_to, still_alone) = expected
    assert np.abs(told - lied_to).max() > 0.1
    assert alone == pytest.approx(still_alone)
    assert np.ptp(alone) > 0.1
    without = TransferSurrogate("half", NoPhysics()).fit(own)
    assert without.unaided(rows, believed) is believed


def test_a_source_like_the_target_weighs_more() -> None:
    weights = TransferSurrogate("slow").fit(history("slow")).predict(candidates("slow")).provenance
    assert weights["gigabit"] > 3 * max(weights["loopback"], weights["half"])
    assert weights["trials"] == 0


@pytest.mark.parametrize("target", ["loopback", "gigabit", "slow", "half"])
def test_without_physics_sources_still_help(target: str) -> None:
    """A tuning table: only knobs are known (and so not what fits a memory that no source had)."""
    first = found(target, history(target), 3, baseline=NoPhysics())
    assert first[0] > found_at_random(target, 1)[0]
    assert first[-1] > 0.8


def test_a_measurement_beats_a_smoothed_guess() -> None:
    """One configuration is fast on the source for no reason that its knobs show."""
    source = trials("loopback", 120)
    odd = source.filter(pl.col("status") == "ok").head(1)
    lucky = source.with_columns(
        pl.col("tokens_per_s_per_device")
        * pl.when(pl.col("trial_id") == odd["trial_id"][0]).then(3.0).otherwise(1.0)
    )
    row = odd.with_columns(pl.lit("half").alias("platform.name"))
    plain, told = (TransferSurrogate("half").fit(known).predict(row).log_mean[0] for known in (source, lucky))
    assert told - plain > 0.5 * np.log(3.0)


def test_one_oom_lowers_the_chance_of_all_that_need_more() -> None:
    known, rows = history("capped"), candidates("capped")
    surrogate = TransferSurrogate("capped")
    before = surrogate.fit(known).predict(rows).chance_to_run
    need = surrogate.baseline_.memory_bytes(rows)
    failed = rows[int(np.argsort(need)[len(need) // 2])].with_columns(
        pl.lit("oom").alias("status"), pl.lit(None, dtype=pl.Float64).alias("tokens_per_s_per_device")
    )
    after = surrogate.fit(pl.concat([known, failed], how="diagonal")).predict(rows).chance_to_run
    more = need >= surrogate.baseline_.memory_bytes(failed)[0]
    assert (after[more] < before[more]).all()


def test_memory_that_sources_measured_corrects_the_need() -> None:
    """They take twice what the physics says, at ZeRO-3 only: what was to fit there no longer does."""
    known, rows = history("capped"), candidates("capped")
    physics = TransformerPhysics()
    rows = rows.with_columns(pl.Series("accelerator.memory_bytes", 1.5 * physics.memory_bytes(rows)))
    measured = physics.memory_bytes(known) * np.where(known["knob.zero_stage"] == 3, 2.0, 1.0)
    told = TransferSurrogate("capped").fit(
        known.with_columns(pl.Series("peak_memory_device_bytes", measured))
    )
    chance, sharded = told.predict(rows).chance_to_run, (rows["knob.zero_stage"] == 3).to_numpy()
    assert chance[sharded].max() < 0.4
    assert chance[~sharded].min() > 0.8


def test_the_targets_own_peaks_correct_the_need() -> None:
    known, own = history("capped"), trials("half", 8).with_columns(pl.lit("capped").alias("platform.name"))
    physics = TransformerPhysics()
    twice = own.with_columns(pl.Series("peak_memory_device_bytes", 2 * physics.memory_bytes(own)))
    rows = candidates("capped")
    rows = rows.with_columns(pl.Series("accelerator.memory_bytes", 1.5 * physics.memory_bytes(rows)))
    plain, told = (
        TransferSurrogate("capped").fit(pl.concat([known, each], how="diagonal")).need_
        for each in (own, twice)
    )
    matrix = np.zeros((len(rows), 0))
    assert (told.over_capacity(rows, matrix) > plain.over_capacity(rows, matrix) + 0.4).all()


def test_a_crash_lowers_its_neighbours_more_than_all_that_need_more() -> None:
    known, rows = history("slow"), candidates("slow")
    crashed = rows.head(1).with_columns(pl.lit("crash").alias("status"))
    surrogate = TransferSurrogate("slow").fit(pl.concat([known, crashed], how="diagonal"))
    plain = TransferSurrogate("slow").fit(known)
    grid = np.linspace(-2, 2, 20)
    edges = [each.feasibility_.edge.predict(grid) for each in (surrogate, plain)]
    assert edges[0] == pytest.approx(edges[1], abs=0.05)
    fall = plain.predict(rows).chance_to_run - surrogate.predict(rows).chance_to_run
    assert fall[0] > 0.2
    assert np.median(fall) < 0.05


@pytest.mark.parametrize("own", [0, 1, 3, 10])
def test_intervals_cover(own: int) -> None:
    shares = []
    for target in PLATFORMS:
        table = trials(target, seed=2)
        fitted = TransferSurrogate(target).fit(pl.concat([history(target), table[:own]], how="diagonal"))
        shares.append(scores(predictions(fitted, table[own:]))["coverage"])
    assert np.mean(shares) > 0.85


def test_a_source_that_was_hardly_measured_is_no_expert() -> None:
    sparse = pl.concat([trials("loopback", 40), trials("half", 2)], how="diagonal")
    assert "half" not in TransferSurrogate("slow").fit(sparse).predict(candidates("slow")).provenance


def test_target_and_sources_are_told_apart_by_name() -> None:
    with pytest.raises(InputError, match=r"platform\.name"):
        TransferSurrogate("slow").fit(trials("slow", 3).drop("platform.name"))


def test_telling_a_trial_does_not_learn_the_sources_again() -> None:
    known = history("slow")
    surrogate = TransferSurrogate("slow").fit(known)
    learned = surrogate.sources_
    told = trials("slow", 2).with_columns(pl.lit(7.0).alias("counter.that_no_source_has"))
    again = surrogate.fit(pl.concat([known, told], how="diagonal"))
    assert again.sources_ is learned
    fresh = TransferSurrogate("slow").fit(pl.concat([known, trials("slow", 2)], how="diagonal"))
    assert np.array_equal(
        again.predict(candidates("slow")).log_mean, fresh.predict(candidates("slow")).log_mean
    )


def test_other_rows_and_other_sources_are_not_taken_for_those_of_the_last_question() -> None:
    rows, known = candidates("slow"), history("slow")
    surrogate = TransferSurrogate("slow").fit(known)
    surrogate.predict(rows)
    other = rows.reverse()
    assert np.array_equal(
        surrogate.predict(other).log_mean, TransferSurrogate("slow").fit(known).predict(other).log_mean
    )
    fewer = history("slow", 30)
    assert np.array_equal(
        surrogate.fit(fewer).predict(other).log_mean,
        TransferSurrogate("slow").fit(fewer).predict(other).log_mean,
    )


def test_a_suggestion_takes_little_time() -> None:
    """5,000 candidates, 400 trials; processor time, since other work may share the machine."""
    known = pl.concat([trials(name, 100) for name in PLATFORMS if name != "slow"], how="diagonal")
    many = pl.concat([candidates("slow")] * 20).head(5000)
    begun = time.process_time()
    surrogate = TransferSurrogate("slow").fit(known)
    fitted = time.process_time()
    surrogate.unaided(many, surrogate.predict(many))
    assert fitted - begun < 3.0
    assert time.process_time() - fitted < 1.0
