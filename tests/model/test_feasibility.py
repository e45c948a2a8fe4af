"""The chance to run: monotone in the need for memory; a failure of unknown cause is blamed as is likely."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.model.feasibility import Feasibility

GRID = np.linspace(-3, 3, 61)
outcomes = st.lists(
    st.tuples(st.floats(-2, 2), st.sampled_from(["ok", "oom", "crash", "timeout"])), max_size=30
)


def fitted(*trials: tuple[float, str]) -> Feasibility:
    x = np.array([need for need, _ in trials], dtype=float)
    status = np.array([status for _, status in trials], dtype=object)
    return Feasibility().fit(x, status)


@given(outcomes)
def test_more_need_is_never_likelier_to_run(trials: list[tuple[float, str]]) -> None:
    chance = fitted(*trials).predict(GRID)
    assert (np.diff(chance) <= 1e-12).all()
    assert ((chance > 0) & (chance < 1)).all()


@given(outcomes.map(lambda trials: [t for t in trials if t[1] in ("ok", "oom")]), st.floats(-2, 2))
def test_one_oom_lowers_all_that_need_more(trials: list[tuple[float, str]], need: float) -> None:
    before, after = fitted(*trials), fitted(*trials, (need, "oom"))
    more = np.linspace(need, 3, 20)
    # an outcome that contradicts others blurs the edge, but makes nothing likely that was not
    assert (after.predict(more) <= np.maximum(before.predict(more), 0.35)).all()
    assert after.predict(more[:1]) < before.predict(more[:1])


@given(outcomes, st.floats(0.05, 0.5))
def test_doubt_of_the_need_takes_from_what_fits_and_gives_to_what_does_not(
    trials: list[tuple[float, str]], sd: float
) -> None:
    model = fitted((-1.0, "ok"), (1.0, "oom"), *trials)
    sure, doubted = model.predict(GRID), model.doubted(GRID, np.full(len(GRID), sd))
    assert (np.diff(doubted) <= 1e-9).all()
    assert model.doubted(GRID, np.zeros(len(GRID))).tolist() == sure.tolist()
    assert np.ptp(doubted) <= np.ptp(sure) + 1e-9


def test_one_that_ran_raises_those_that_need_less() -> None:
    before, after = fitted(), fitted((0.8, "ok"))
    less = np.linspace(-1, 0.8, 20)
    assert (after.predict(less) > before.predict(less)).all()


LOW, HIGH = np.linspace(-1.5, -0.5, 20), np.linspace(0.3, 1.5, 20)


def test_where_no_failure_has_a_cause_memory_is_blamed_where_it_is_short() -> None:
    chance = fitted(*((x, "ok") for x in LOW), *((x, "crash") for x in HIGH)).predict(GRID)
    assert chance[GRID < -0.6].min() > 0.9
    assert chance[GRID > 0.5].max() < 0.15


def test_where_out_of_memory_is_recorded_a_crash_is_something_else() -> None:
    labelled = [*((x, "ok") for x in LOW), *((x, "oom") for x in HIGH)]
    before, after = fitted(*labelled).edge, fitted(*labelled, (-0.8, "crash")).edge
    assert after.blame(np.array([-0.8]))[0] < 0.1
    assert after.predict(GRID) == pytest.approx(before.predict(GRID), abs=0.06)
    assert after.predict(np.array([-1.0])) < before.predict(np.array([-1.0]))


def test_a_few_crashes_in_the_middle_of_what_ran_are_no_edge() -> None:
    crashes = [(x, "crash") for x in (-1.2, -1.0, -0.9)]
    chance = fitted(*((x, "ok") for x in LOW), *crashes).predict(np.array([-1.5, -0.5]))
    assert chance[1] > 0.75
    assert chance[0] - chance[1] < 0.15


def test_one_that_was_refused_says_nothing() -> None:
    with_it, without = fitted((0.0, "ok"), (0.1, "invalid")), fitted((0.0, "ok"))
    assert with_it.predict(GRID) == pytest.approx(without.predict(GRID))


def test_the_edge_is_found_where_it_is() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 300)
    status = np.where(x < -0.6, "ok", "oom").astype(object)
    chance = Feasibility().fit(x, status).predict(np.array([-1.0, -0.2]))
    assert chance[0] > 0.85
    assert chance[1] < 0.1


def test_without_a_known_need_trees_learn_the_knobs_that_fail() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 4, (80, 3)).astype(float)
    status = np.where(matrix[:, 1] == 3, "crash", "ok").astype(object)
    unknown = np.full(80, np.nan)
    chance = Feasibility().fit(unknown, status, matrix).predict(unknown, matrix)
    assert chance[status == "crash"].max() < chance[status == "ok"].min()
