"""Tuning a callable: it finds the best in few calls, and fewer with other devices' tables."""

import itertools
import statistics

import numpy as np
import polars as pl
import pytest

import pretune
from pretune.datasets.platform import Accelerator, Platform
from pretune.datasets.tuning_table import SPEED
from pretune.errors import InputError
from pretune.tuner.space import Space


def test_history_finds_the_best_in_few_calls_and_without_it_takes_more(kernel):
    best = kernel.seconds(64, 2, 3, False)
    helped = pretune.tune_function(kernel.seconds, kernel.space, history=kernel.history, trials=4)
    assert best / helped.best.value > 0.95
    alone = pretune.tune_function(kernel.seconds, kernel.space, trials=4)
    assert alone.best is None or alone.best.value > helped.best.value


def test_alone_it_beats_random(kernel):
    rng = np.random.default_rng(0)
    every = list(itertools.product(*kernel.space.values()))

    def drawn(_):
        found = []
        for i in rng.choice(len(every), 15, replace=False):
            try:
                found.append(kernel.seconds(*every[i]))
            except MemoryError:
                continue
        return min(found)

    random = statistics.fmean(drawn(seed) for seed in range(50))
    found = statistics.fmean(
        pretune.tune_function(kernel.seconds, kernel.space, trials=15, seed=seed).best.value
        for seed in range(3)
    )
    assert found < random


def test_what_raises_is_a_failed_call_and_the_search_goes_on(kernel):
    told = []
    found = pretune.tune_function(
        kernel.seconds, kernel.space, history=kernel.history, trials=6, progress=told.append
    )
    assert told == found.trials
    assert len({tuple(tried.knobs.items()) for tried in found.trials}) == 6

    def never(**_):
        raise RuntimeError("no device")

    failed = pretune.tune_function(never, kernel.space, trials=3)
    assert failed.best is None
    assert [tried.error for tried in failed.trials] == ["RuntimeError: no device"] * 3


def test_a_rate_is_maximised_and_a_space_ends():
    found = pretune.tune_function(lambda block: 1.0 * block, {"block": [1, 2, 3]}, trials=9, maximize=True)
    assert len(found.trials) == 3
    assert found.best.knobs == {"block": 3}


def test_constraints_hold_and_a_value_that_has_no_ratio_is_refused():
    space = Space(knobs={"a": [1, 2, 3], "b": [1, 2, 3]}, constraints=("a <= b",))
    found = pretune.tune_function(lambda a, b: a + b, space, trials=9)
    assert len(found.trials) == 6
    with pytest.raises(InputError, match="above 0"):
        pretune.tune_function(lambda a: -float(a), {"a": [1, 2]})


def test_the_tuner_takes_a_space_a_workload_and_a_platform(workload):
    cluster = Platform(name="here", accelerator=Accelerator(name="gpu"), devices_per_node=2)
    tuner = pretune.Tuner({"micro_batch": [1, 2], "zero_stage": [0, 1]}, workload, cluster)
    (proposal,) = tuner.ask()
    assert proposal.knobs.micro_batch in (1, 2)
    assert len(tuner.ask(9)) == 3
    assert tuner.best() is None
    with pytest.raises(InputError, match="no knob"):
        pretune.Tuner({"micro_bach": [1]}, workload, cluster)


def test_values_are_whatever_holds_several():
    space = {"a": range(1, 3), "b": (1, 2), "c": np.array([8, 16]), "d": 4, "e": "one"}
    assert Space.of(space).knobs == {"a": [1, 2], "b": [1, 2], "c": [8, 16], "d": [4], "e": ["one"]}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"space": [1, 2]}, "space: is a list; give values by knob"),
        ({"space": {"Y": [1, 2]}}, "the function cannot be called with its knobs"),
        ({"trials": 0}, "trials: 0 is less than 1"),
        ({"history": "shipped"}, "history: is a str; give a polars frame"),
        ({"history": pl.DataFrame({"knob.X": [1]})}, "column platform.name is missing"),
        ({"history": pl.DataFrame({"platform.name": ["a"], "knob.X": [1]})}, f"column {SPEED} is missing"),
        ({"history": pl.DataFrame({"platform.name": ["a"], SPEED: [1.0]})}, "needs a column of knob.X"),
        ({"function": lambda X: None}, "returned None: give seconds or a rate"),  # noqa: ARG005
    ],
)
def test_a_mistake_is_one_line_and_no_failed_call(asked, says):
    given = {"function": lambda X: 1.0 * X, "space": {"X": [1, 2]}} | asked
    with pytest.raises(InputError, match=says):
        pretune.tune_function(given.pop("function"), given.pop("space"), **given)


def test_a_tuner_is_told_a_speed_or_a_failure(workload, target):
    tuner = pretune.Tuner({"micro_batch": [1, 2, 4]}, workload, target)
    first, second = tuner.ask(2)
    tuner.tell(first, 100.0)
    tuner.tell(second.knobs, cause="out of memory")
    assert tuner.best().knobs == first.knobs
    assert [trial.cause for trial in tuner.trials] == [None, "out of memory"]
    (third,) = tuner.ask()
    assert third.knobs not in (first.knobs, second.knobs)
    for wrong, speed, says in ((100.0, None, "tell: is given a float"), (first, -1.0, "tell: tokens_per_s")):
        with pytest.raises(InputError, match=says):
            tuner.tell(wrong, speed)
    with pytest.raises(InputError, match=r"platform: is a str; give a pretune\.Platform"):
        pretune.Tuner({"micro_batch": [1]}, workload, "mine")
