"""Counters from outside, in slices: any span of time, whatever the slices were."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.collector.counters import Readings
from pretune.collector.counters.slices import MOST, Slice, Slices, within

BURNS = "import time\nprint(1, flush=True)\nwhile True: pass"
LENGTHS = st.lists(st.floats(0.1, 5.0), min_size=1, max_size=20)


def sliced(lengths):
    """Slices of a counter that grows by 3 a second, and of a gauge that is the time itself."""
    slices, begin_s = [], 0.0
    for length in lengths:
        end_s = begin_s + length
        slices.append(
            Slice(begin_s, end_s, Readings({"work_j": 3 * length}, {"heat": (begin_s + end_s) / 2}))
        )
        begin_s = end_s
    return slices, begin_s


@given(LENGTHS, st.floats(0, 1), st.floats(0, 1))
def test_a_span_has_its_share_of_the_totals(lengths, one, other):
    slices, end_s = sliced(lengths)
    begin, end = sorted((one * end_s, other * end_s))
    read = within(slices, begin, end)
    assert read.totals.get("work_j", 0.0) == pytest.approx(3 * (end - begin), abs=1e-9)


@given(LENGTHS)
def test_gauges_are_weighed_by_time_and_slices_join_to_the_same(lengths):
    slices, end_s = sliced(lengths)
    whole = within(slices, 0.0, end_s)
    assert whole.means["heat"] == pytest.approx(end_s / 2)
    middle = slices[len(slices) // 2].begin_s
    halves = [Slice(b, e, within(slices, b, e)) for b, e in ((0.0, middle), (middle, end_s)) if e > b]
    again = within(halves, 0.0, end_s)
    assert again.totals == pytest.approx(whole.totals)
    assert again.means == pytest.approx(whole.means)


def test_another_process_is_read_while_it_works_and_when_it_is_gone():
    with subprocess.Popen([sys.executable, "-c", BURNS], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        began_s = time.monotonic()
        slices = Slices(lambda: child.pid, slice_s=0.05)
        time.sleep(1.0)
        child.kill()
        child.wait()
        killed_s = time.monotonic()
        time.sleep(0.3)
        slices.stop()
    worked, rested = slices.between(began_s, killed_s), slices.between(killed_s + 0.1, time.monotonic())
    assert 0 < worked.totals["cpu_user_s"] <= 1.1 * (killed_s - began_s)
    assert "cpu_user_s" not in rested.totals
    assert "load_average_1min" in rested.last


def test_a_long_command_is_kept_in_slices_that_grow(monkeypatch):
    slices = Slices(lambda: 1, slice_s=3600.0)
    slices.stop()
    one_second, _ = sliced([1.0] * (MOST + 10))
    monkeypatch.setattr(slices, "_slices", [])
    for each in one_second:
        slices._keep(each)
    assert len(slices._slices) < MOST
    assert slices._slice_s == 7200.0
    assert slices.between(0.0, MOST + 10).totals["work_j"] == pytest.approx(3 * (MOST + 10))
