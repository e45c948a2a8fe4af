import threading
import time

import pytest

from pretune.collector.counters.perf import EVENTS, PerfCounters


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def in_threads(count, seconds):
    threads = [threading.Thread(target=burn, args=(seconds,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def provider():
    made = PerfCounters()
    if "perf" in made.missing or "perf.cpu_clock_s" in made.missing:
        pytest.skip(f"no perf events here: {made.missing}")
    return made


def test_every_event_is_read_or_its_reason_given(provider):
    provider.start()
    burn(0.05)
    totals = provider.stop().totals
    for event in EVENTS:
        assert (event in totals) != (f"perf.{event}" in provider.missing)
    if "instructions_user" in totals:
        assert totals["instructions_user"] > 1e6


def test_the_clock_counts_threads_that_were_there_and_those_that_came(provider):
    begin = threading.Event()
    there = threading.Thread(target=lambda: (begin.wait(), burn(0.1)))
    there.start()
    provider.start()
    begin.set()
    in_threads(2, 0.1)
    there.join()
    assert provider.stop().totals["cpu_clock_s"] == pytest.approx(0.3, rel=0.25)


def test_nothing_stays_open(provider):
    from pathlib import Path

    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(3):
        provider.start()
        provider.stop()
    assert count() == before
