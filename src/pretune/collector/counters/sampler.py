"""Gauges, read over and over by a thread while the training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from statistics import fmean


class Sampler:
    """Calls ``sample`` every ``interval_s`` seconds; a gauge that a sample lacks is left out of its mean."""

    def __init__(self, name: str, sample: Callable[[], dict[str, float]], interval_s: float) -> None:
        self.name, self.sample, self.interval_s = name, sample, interval_s

    def start(self) -> None:
        self._samples: list[dict[str, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"pretune-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """The mean of each gauge since ``start``, of one sample at least."""
        self._ended.set()
        self._thread.join()
        self._samples.append(self.sample())
        names = {name for sample in self._samples for name in sample}
        return {name: fmean(s[name] for s in self._samples if name in s) for name in sorted(names)}

    def _watch(self) -> None:
        while not self._ended.wait(self.interval_s):
            self._samples.append(self.sample())
