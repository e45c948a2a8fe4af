"""The meter on a device that works through a queue while the host runs ahead of it, by a clock of its own."""

from types import SimpleNamespace

import pytest

from pretune.collector import device, meter
from pretune.collector.counters import CounterProvider, Counters, Readings
from pretune.collector.meter import Meter
from pretune.collector.ranks import Ranks
from pretune.datasets import Measure

MEASURE = Measure(min_warmup_windows=2, max_warmup_windows=2, min_windows=5, max_windows=10, max_seconds=500)
STEP_S, HOST_S = 2.0, 0.1


class Queue:
    """Stands in for ``torch.cuda`` and ``time``: what is enqueued takes its time; waits last till then."""

    def __init__(self):
        self.now_s = self.free_s = 0.0
        self.waits = 0

    def perf_counter(self):
        return self.now_s

    def enqueue(self, seconds):
        self.now_s += HOST_S
        self.free_s = max(self.free_s, self.now_s) + seconds

    def synchronize(self):
        self.waits += 1
        self.now_s = max(self.now_s, self.free_s)

    def Event(self, enable_timing):
        event = SimpleNamespace()
        event.record = lambda: setattr(event, "at_s", max(self.free_s, self.now_s))
        event.elapsed_time = lambda other: 1000 * (other.at_s - event.at_s)
        return event

    def mem_get_info(self):
        return 1, 1

    def __getattr__(self, name):
        return lambda: 0


class Clock(CounterProvider):
    """Counts the seconds of the queue's clock."""

    name = "clock"

    def __init__(self, queue):
        super().__init__()
        self.queue = queue

    def start(self):
        self.before_s = self.queue.now_s

    def stop(self):
        return Readings({"clock_s": self.queue.now_s - self.before_s})


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    monkeypatch.setattr(device, "_cuda", lambda: made)
    for module in (device, meter):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def measuring(queue):
    assert device.mark().at_s == queue.now_s == 0.0
    return Meter(MEASURE, Ranks(), device.PeakMemory())


def trained(queue, measuring, steps):
    for _ in range(steps):
        queue.enqueue(STEP_S)
        measuring.step(8)


def test_windows_are_timed_on_the_device_while_the_host_runs_ahead(queue, measuring):
    trained(queue, measuring, 2)
    warm_s, waits = queue.now_s, queue.waits
    trained(queue, measuring, 4)
    assert queue.now_s == pytest.approx(warm_s + 4 * HOST_S)  # it waited for nothing
    trained(queue, measuring, 6)
    assert queue.waits == waits + 2  # the ends of the blocks
    found = measuring.result()
    assert found["window_times_s"][1:5] == pytest.approx([STEP_S] * 4)
    assert sum(found["window_times_s"]) == pytest.approx(queue.now_s - warm_s)
    assert found["tokens_per_s"] == pytest.approx(10 * 8 / (queue.now_s - warm_s))


def test_a_loop_that_ends_inside_a_block_is_timed_to_its_last_window(queue, measuring):
    trained(queue, measuring, 2 + 3)
    queue.now_s += 50.0  # what comes after the loop is none of it
    assert measuring.result()["window_times_s"] == pytest.approx([STEP_S + HOST_S, STEP_S, STEP_S])


def test_a_pause_takes_no_enqueued_training_with_it_and_leaves_nothing_of_its_own(queue, measuring):
    trained(queue, measuring, 2 + 3)
    with measuring.pause():
        queue.enqueue(10 * STEP_S)
    trained(queue, measuring, 2)
    expected = [STEP_S + HOST_S, STEP_S, STEP_S, STEP_S + HOST_S, STEP_S]
    assert measuring.result()["window_times_s"] == pytest.approx(expected)


def test_a_loop_that_ends_while_it_warms_up_has_no_speed(queue, measuring):
    trained(queue, measuring, 1)
    assert measuring.result()["tokens_per_s"] is None


@pytest.mark.parametrize(("asked_at", "measured"), [(0, 3), (4, 5), (10**9, 10)])
def test_a_measurement_is_stopped_at_the_next_moment_that_the_ranks_share(queue, asked_at, measured):
    asked, told = [], []

    def stop():
        asked.append(1)
        return len(asked) > 2 + asked_at  # after two warm-up windows

    def report(_phase, _windows, window_times_s):
        told.append(list(window_times_s))

    measuring = Meter(MEASURE, Ranks(), device.PeakMemory(), report, stop)
    trained(queue, measuring, 12)
    found = measuring.result()
    assert found["stopped_early"] is (True if measured < 10 else None)
    assert len(found["window_times_s"]) == measured
    assert found["tokens_per_s"] == pytest.approx(8 * measured / sum(found["window_times_s"]))
    assert found["tokens_per_s_std_error"] is not None
    assert told[-1] == found["window_times_s"]  # whoever watches sees each window when it ended


def test_pauses_after_the_measurement_wait_for_nothing(queue, measuring):
    trained(queue, measuring, 2 + 10)
    waits = queue.waits
    with measuring.pause():
        pass
    assert measuring.done
    assert queue.waits == waits


def test_what_is_counted_in_a_pause_is_none_of_the_training(queue, measuring, monkeypatch):
    monkeypatch.setattr(measuring, "_counters", Counters([Clock(queue)]))
    trained(queue, measuring, 2 + 3)
    with measuring.pause():
        queue.enqueue(10 * STEP_S)
    trained(queue, measuring, 2)
    found = measuring.result()
    assert found["counters"]["clock_s"] == pytest.approx(sum(found["window_times_s"]))
    assert found["counters"]["clock_s_per_step"] == pytest.approx(found["counters"]["clock_s"] / 5)
