"""Counters over a time that is known only afterwards: read in slices, joined for any span of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pretune.collector.counters import Counters, Readings, outside_providers
from pretune.collector.counters.base import joined

SLICE_S = 1.0
MOST = 512  # slices that are kept; then each two become one, and slices twice as long


@dataclass(frozen=True)
class Slice:
    """The readings from ``begin_s`` to ``end_s`` of :func:`time.monotonic`."""

    begin_s: float
    end_s: float
    readings: Readings


def within(slices: Sequence[Slice], begin_s: float, end_s: float) -> Readings:
    """The readings of a span. Of a slice that lies in it in part, that part of its totals counts."""
    spells = []
    for each in slices:
        inside_s = min(end_s, each.end_s) - max(begin_s, each.begin_s)
        if inside_s > 0:
            share = inside_s / (each.end_s - each.begin_s)
            totals = {name: amount * share for name, amount in each.readings.totals.items()}
            spells.append((inside_s, replace(each.readings, totals=totals)))
    return joined(spells)


class Slices:
    """Reads the host, and the process that ``process()`` names now, in a thread until ``stop``."""

    def __init__(self, process: Callable[[], int], slice_s: float = SLICE_S) -> None:
        self._process, self._slice_s = process, slice_s
        self._slices: list[Slice] = []
        self._pid: int | None = None
        self._counters = Counters([])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pretune-slices", daemon=True)
        self._thread.start()

    @property
    def missing(self) -> dict[str, str]:
        """What could not be read -> the reason."""
        return self._counters.missing

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, begin_s: float, end_s: float) -> Readings:
        """The readings between two times of :func:`time.monotonic`."""
        return within(self._slices, begin_s, end_s)

    def _watch(self) -> None:
        ended = False
        while not ended:
            if (pid := self._process()) != self._pid:
                self._pid, self._counters = pid, Counters(outside_providers(pid))
            begin_s = time.monotonic()
            self._counters.start()
            ended = self._ended.wait(self._slice_s)
            self._keep(Slice(begin_s, time.monotonic(), self._counters.read()))

    def _keep(self, read: Slice) -> None:
        self._slices.append(read)
        if len(self._slices) == MOST:
            pairs = zip(self._slices[::2], self._slices[1::2], strict=True)
            self._slices = [_one(first, second) for first, second in pairs]
            self._slice_s *= 2


def _one(first: Slice, second: Slice) -> Slice:
    begin_s, end_s = first.begin_s, second.end_s
    return Slice(begin_s, end_s, within([first, second], begin_s, end_s))
