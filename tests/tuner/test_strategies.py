"""One suite for every strategy, and what sets transfer apart."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pretune.datasets import TrialStore
from pretune.errors import InputError
from pretune.tuner.space import Space
from pretune.tuner.strategies import STRATEGIES, strategy
from pretune.tuner.strategies.transfer import stalled
from pretune.tuner.tuner import Tuner


@pytest.fixture(scope="module")
def outcomes(recorded):
    """Resolved knobs -> a recorded trial of the target."""
    return {frozenset(t.knobs.settings().items()): t for t in TrialStore(recorded).trials()}


@pytest.fixture(scope="module")
def candidates(target, space, workload):
    return Space(knobs=space).candidates(workload, target)


@pytest.fixture(scope="module")
def sources(history):
    return TrialStore(history).frame()


def play(candidates, history, outcomes, name, trials, seed=0):
    """The trials of a search of the recorded target."""
    tuner = Tuner.over(candidates, history, name, seed)
    for _ in range(trials):
        for proposal in tuner.ask():
            tuner.tell(outcomes[frozenset(proposal.knobs.settings().items())])
    return tuner


@pytest.fixture(params=STRATEGIES)
def name(request):
    return request.param


def test_never_asks_a_row_twice_and_ends_when_all_are_tried(candidates, sources, name):
    few = candidates.frame.head(7)
    asked = strategy(name)(few, sources, 0)
    rows = asked.ask(3) + asked.ask(3) + asked.ask(3)
    assert sorted(rows) == list(range(7))
    assert asked.ask() == []


def test_is_deterministic(candidates, sources, outcomes, name):
    first, again = (
        [t.trial_id for t in play(candidates, sources, outcomes, name, 4, seed=3).trials] for _ in range(2)
    )
    assert first == again


def test_takes_failed_trials_and_rows_it_never_asked_for(candidates, sources, outcomes, name):
    asked = strategy(name)(candidates.frame, sources, 0)
    failed = [t for t in outcomes.values() if not t.ok]
    rows = {row: t for t in failed if (row := candidates.row_of(t.knobs)) is not None}
    assert rows
    for row, trial in rows.items():
        asked.tell(row, trial)
    assert not set(asked.ask(5)) & set(rows)


def test_works_without_any_history(candidates, outcomes, name):
    assert len(play(candidates, None, outcomes, name, 3).trials) == 3


def test_a_resumed_search_goes_on_as_the_uninterrupted_one(candidates, sources, outcomes, name):
    whole = play(candidates, sources, outcomes, name, 5).trials
    resumed = Tuner.over(candidates, sources, name, 0)
    for trial in whole[:3]:
        resumed.tell(trial)
    row = resumed.ask()[0].knobs
    assert row == whole[3].knobs


def test_unknown_strategy_is_named_with_the_known_ones():
    with pytest.raises(InputError, match="transfer, source-order, random"):
        strategy("guess")


def test_source_order_begins_with_what_was_best_on_average(candidates, sources, outcomes):
    first = play(candidates, sources, outcomes, "source-order", 1).trials[0]
    relative = sources.with_columns(
        (pl.col("tokens_per_s_per_device").fill_null(0) / pl.col("tokens_per_s_per_device").max())
        .over("platform.name")
        .alias("relative")
    )
    knobs = [
        "knob.micro_batch",
        "knob.zero_stage",
        "knob.reduce_bucket_size",
        "knob.activation_checkpointing",
    ]
    mean = relative.group_by(knobs).agg(pl.col("relative").mean()).sort("relative")
    best = mean.row(-1, named=True)["relative"]
    mine = mean.row(
        by_predicate=pl.all_horizontal(
            [pl.col(k) == first.knobs.settings()[k.removeprefix("knob.")] for k in knobs]
        ),
        named=True,
    )
    assert mine["relative"] == pytest.approx(best)


def best_share(candidates, history, outcomes, name, trials, seeds):
    """Mean over seeds of the best throughput found, as a share of the best there is."""
    top = max(t.tokens_per_s_per_device for t in outcomes.values() if t.ok)
    found = []
    for seed in range(seeds):
        best = play(candidates, history, outcomes, name, trials, seed).best()
        found.append(best.tokens_per_s_per_device / top if best else 0.0)
    return np.mean(found)


def test_transfer_beats_random_and_needs_its_history(candidates, sources, outcomes):
    transfer = best_share(candidates, sources, outcomes, "transfer", 3, seeds=1)
    without = best_share(candidates, None, outcomes, "transfer", 3, seeds=1)
    chance = best_share(candidates, sources, outcomes, "random", 3, seeds=30)
    assert transfer > 0.97
    assert transfer > chance + 0.05
    assert transfer > without + 0.02


def doubts(told):
    """How many trials had been told whenever the next one was chosen without the sources."""
    return [k for k in range(len(told) + 1) if stalled(np.array(told[:k], dtype=np.float64))]


def test_a_search_that_gains_never_doubts_its_sources():
    assert doubts([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]) == []
    assert doubts([np.nan] * 6) == []


def test_patience_doubles_while_nothing_is_gained_and_starts_anew_after_a_gain():
    assert doubts([1.0, *[0.9, np.nan, 1.01, 1.0] * 4]) == [2, 5, 10]
    assert doubts([-5.0, -5.1, -5.2, -3.0, -3.1, -3.2, -3.0]) == [2, 5]
