"""The measuring core of the recorder and of the trial program: windows, losses, waits, counters."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

from pretune.collector import device
from pretune.collector.counters import Counters
from pretune.collector.outcome import Diverged
from pretune.collector.ranks import Ranks
from pretune.collector.windows import Reading, WindowRule, relative_std_error, throughput
from pretune.datasets.trial import Measure

Batch = TypeVar("Batch")
Report = Callable[[str, int, list[float]], None]
LEAST_WINDOWS = 3  # of a measurement that is stopped: fewer tell no spread
STOPPABLE_S = 2.0  # the ranks of a trial that can be stopped ask each other about so often


class Meter:
    """Call ``step`` on every rank at the end of every accumulation window until it returns False.

    At the ends of blocks only (see :mod:`.windows`) the ranks exchange a few numbers and the
    device is waited for; other windows end with a mark in the device's queue, so that the host
    may go on enqueuing. ``report(phase, windows, window_times_s)`` is called after each window, with the
    times of those in blocks that ended. ``stop`` (asked at the ends of blocks, of any rank) ends the
    measurement as soon as :data:`LEAST_WINDOWS` are measured.
    """

    def __init__(
        self,
        measure: Measure,
        ranks: Ranks,
        memory: device.PeakMemory,
        report: Report | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.rule = WindowRule(measure, math.inf if stop is None else STOPPABLE_S)
        self.stopped_early: bool | None = None
        self._stop = stop
        self.ranks = ranks
        self.memory = memory
        self.ends_s: list[float] = []
        self._report = report
        self._counters = Counters()
        self._readings: dict[str, float] = {}
        self._tokens = 0
        self._marks: list[tuple[Any, float]] = []  # of the block's windows: end, seconds paused before
        self._waited_s = self._paused_s = 0.0
        self._loss_first: float | None = None
        self._loss: Any = None
        self._compilations = device.compilations()
        self._block_start_s = self._now()

    @property
    def diagnostic(self) -> bool:
        """Whether something that is read slows the training: its throughput is then not that of the job."""
        return self._counters.intrusive

    @property
    def done(self) -> bool:
        return self.rule.block == 0

    def batches(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the time spent waiting for them becomes ``data_wait_s``."""
        iterator = iter(source)
        while True:
            asked_s = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._waited_s += time.perf_counter() - asked_s
            yield batch

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What is done meanwhile (an evaluation, a checkpoint) is no part of any step."""
        if self.done:
            yield
            return
        device.synchronize()  # what was enqueued before is training
        began_s, counting = time.perf_counter(), self.rule.measuring
        if counting:
            self._counters.pause()
        try:
            yield
        finally:
            device.synchronize()
            if counting:
                self._counters.resume()
            self._paused_s += time.perf_counter() - began_s

    def _now(self) -> float:
        """Seconds of training: the clock stands still in a pause."""
        return time.perf_counter() - self._paused_s

    def step(self, tokens: int, loss: Any = None) -> bool:
        """One window ended, in which the whole job trained on ``tokens``; False when enough is measured.

        ``loss`` (a number or a scalar tensor) is read at the ends of blocks only. Raises
        :class:`Diverged` on every rank when it is not finite on any of them.
        """
        if self.done:
            return False
        self._loss = loss.detach() if hasattr(loss, "detach") else loss
        self._tokens += tokens
        self._marks.append((device.mark(), self._paused_s))
        if len(self._marks) == self.rule.block:
            self._end_block()
        if self._report and self.rule.measuring:
            self._report("measure", len(self.ends_s) + len(self._marks) - 1, self._window_times_s())
        elif self._report:
            self._report("warmup", self.rule.warmup_windows, [])
        return not self.done

    def _end_block(self) -> None:
        measured = self.rule.measuring
        self._read_marks(measured)
        reading = self._exchange()
        self._block_start_s = self._now()  # after the exchange: when the slowest rank was done
        self.rule.ended(reading)
        if reading.stop and measured and self.rule.windows >= LEAST_WINDOWS and not self.done:
            self.rule.block, self.stopped_early = 0, True
        if measured:
            self.ends_s[-1] = self._block_start_s
            if self.done:
                self._readings = self._counters.stop(len(self.ends_s) - 1)
        elif self.rule.measuring:
            self._counters.start()
            self._tokens, self._waited_s = 0, 0.0
            self._block_start_s = self._now()
            self.ends_s = [self._block_start_s]

    def _read_marks(self, measured: bool = True) -> None:
        """Wait for the device; the ends of measured windows are kept."""
        moments = device.moments([mark for mark, _ in self._marks])
        if measured:
            self.ends_s += [at - paused for at, (_, paused) in zip(moments, self._marks, strict=True)]
        self._marks = []

    def _exchange(self) -> Reading:
        seconds = self._now() - self._block_start_s
        self.memory.sample()
        compilations = device.compilations()
        loss = None if self._loss is None else float(self._loss)
        if self._loss_first is None:
            self._loss_first = loss
        lost = loss is not None and not math.isfinite(loss)
        recompiled = compilations > self._compilations
        self._compilations = compilations
        stop = self._stop is not None and self._stop()
        largest = self.ranks.largest([seconds, recompiled, device.reserved_bytes(), lost, stop])
        if largest[3]:
            raise Diverged(f"the loss became {loss} on this rank, or is not finite on another")
        return Reading(largest[0], bool(largest[1]), int(largest[2]), stop=bool(largest[4]))

    def result(self) -> dict[str, Any]:
        """The measured fields of a Trial. Every rank calls it, after its last step."""
        if self.rule.measuring and not self.done:  # the loop ended before the rule did
            self._read_marks()
            self._readings = self._counters.stop(len(self.ends_s) - 1)
        memory = self.memory.read()
        own = {
            "host": socket.gethostname(),
            "data_wait_s": self._waited_s,
            "compile_s": device.compile_seconds(),
            "loss_first": self._loss_first,
            "loss_last": None if self._loss is None else float(self._loss),
            **memory,
        }
        every = self.ranks.gather(own)
        return {
            **self._speed(),
            **{
                name: _largest(each[name] for each in every) for name in ("data_wait_s", "compile_s", *memory)
            },
            **{name: _mean(each[name] for each in every) for name in ("loss_first", "loss_last")},
            "stopped_early": self.stopped_early,
            "hosts": [each["host"] for each in every],
            "counters": self._readings,
            "missing": self._counters.missing,
        }

    def alone(self) -> dict[str, Any]:
        """What this rank knows when the training broke off, without asking the others."""
        return {
            "warmup_windows": self.rule.warmup_windows,
            "loss_first": self._loss_first,
            "hosts": [socket.gethostname()],
            "missing": self._counters.missing,
            **self.memory.read(),
        }

    def _window_times_s(self) -> list[float]:
        return [end - start for start, end in pairwise(self.ends_s)]

    def _speed(self) -> dict[str, Any]:
        times = self._window_times_s()
        tokens_per_s = throughput(self._tokens, self.ends_s)
        relative = relative_std_error(times)
        known = tokens_per_s is not None and relative is not None
        return {
            "window_times_s": times,
            "warmup_windows": self.rule.warmup_windows,
            "step_time_s": sum(times) / len(times) if times else None,
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_device": tokens_per_s / self.ranks.size if tokens_per_s else None,
            "tokens_per_s_std_error": tokens_per_s * relative if known else None,  # type: ignore[operator]
        }


def _largest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
