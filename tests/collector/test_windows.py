import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.collector.windows import Reading, WindowRule, relative_std_error, throughput
from pretune.datasets import Measure

seconds = st.floats(min_value=1e-3, max_value=30.0)


def run(measure: Measure, times: list[float], recompiled_until: int = 0) -> WindowRule:
    """Feed the rule window times (the last one again and again) until it is done."""
    rule, window = WindowRule(measure), 0
    while rule.block:
        taken = sum(times[min(window + i, len(times) - 1)] for i in range(rule.block))
        window += rule.block
        rule.ended(Reading(taken, recompiled=window <= recompiled_until))
    return rule


@given(st.lists(seconds, min_size=1, max_size=60), st.integers(0, 12))
def test_the_caps_of_the_measure_hold_whatever_the_windows_take(times, recompiled_until):
    measure = Measure(
        min_warmup_windows=2, max_warmup_windows=6, min_windows=4, max_windows=20, max_seconds=5.0
    )
    rule = run(measure, times, recompiled_until)
    assert 2 <= rule.warmup_windows <= 6
    assert 4 <= rule.windows <= 20


@given(seconds)
def test_with_steady_windows_it_measures_for_the_time_that_was_given(step_s):
    measure = Measure(min_windows=3, max_windows=1000, max_seconds=20.0)
    rule = run(measure, [step_s])
    assert rule.warmup_windows == measure.min_warmup_windows
    wanted = min(max(20.0 / step_s, 3), 1000)
    assert rule.windows == pytest.approx(wanted, abs=1)


def test_a_steady_measurement_asks_the_ranks_twice_only():
    rule = WindowRule(Measure(min_windows=6, max_windows=40, max_seconds=6.0))
    asked = 0
    while rule.block:
        asked += rule.measuring
        rule.ended(Reading(0.25 * rule.block))
    assert rule.windows == 24
    assert asked == 2


def test_warmup_goes_on_while_windows_get_faster():
    falling = [8.0, 4.0, 2.0, 1.0, 1.0]
    assert run(Measure(min_warmup_windows=2, max_warmup_windows=9), falling).warmup_windows == 5


def test_warmup_goes_on_while_something_recompiles_though_the_time_is_steady():
    assert (
        run(Measure(min_warmup_windows=2, max_warmup_windows=9), [1.0], recompiled_until=5).warmup_windows
        == 6
    )


def test_warmup_goes_on_while_reserved_memory_grows():
    rule = WindowRule(Measure(min_warmup_windows=1, max_warmup_windows=9))
    for reserved in (100, 200, 300, 300):
        assert not rule.measuring
        rule.ended(Reading(1.0, reserved_bytes=reserved))
    assert rule.measuring


def test_throughput_counts_a_stall_that_a_median_of_steps_would_hide():
    times = [0.1] * 9 + [1.1]
    ends = np.cumsum([0.0, *times]).tolist()
    assert throughput(1000, ends) == pytest.approx(500.0)
    assert throughput(1000, [1.0]) is None


def test_the_standard_error_of_independent_windows_is_that_of_their_mean():
    generator = np.random.default_rng(0)
    times = generator.normal(1.0, 0.1, size=(2000, 40))
    errors = [relative_std_error(row.tolist()) for row in times]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.1 / math.sqrt(40), rel=0.05)


def test_the_standard_error_sees_that_neighbouring_windows_are_alike():
    """With an AR(1) of 0.8 the mean's true error is three times that of independent windows."""
    generator = np.random.default_rng(1)
    rows = []
    for _ in range(500):
        noise, row = 0.0, []
        for shock in generator.normal(0, 0.1 * math.sqrt(1 - 0.8**2), size=200):
            noise = 0.8 * noise + shock
            row.append(1.0 + noise)
        rows.append(row)
    true_error = np.std([np.mean(row) for row in rows])
    batch = np.sqrt(np.mean([relative_std_error(row) ** 2 for row in rows]))
    naive = 0.1 / math.sqrt(200)
    assert abs(batch - true_error) < 0.35 * true_error
    assert naive < 0.5 * true_error


@given(st.lists(seconds, max_size=50), st.floats(0.1, 100.0))
def test_the_relative_error_does_not_depend_on_the_unit_of_time(times, factor):
    error, scaled = relative_std_error(times), relative_std_error([t * factor for t in times])
    assert (error is None) == (len(times) < 2)
    if error is not None:
        assert scaled == pytest.approx(error, rel=1e-6, abs=1e-9)
