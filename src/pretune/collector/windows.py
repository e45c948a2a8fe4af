"""The measurement rule: when the warm-up ends, when enough is measured, and how sure the figure is.

A window is one whole accumulation window, optimizer step included. Windows run in
*blocks*: within a block nothing is asked of anyone; at its end the ranks exchange one
reading, and the same rule on every rank, fed the same numbers, takes the same decision.
Warm-up blocks are one window long; measured ones as long as the time that is left, so
that a whole measurement costs two or three exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pretune.datasets.trial import Measure

STATIONARY_TOLERANCE = 0.10  # a shared machine's steps differ by this much when nothing changes
MAX_BATCHES = 8  # batches of the standard error; few and long, so that they are nearly independent


@dataclass(frozen=True)
class Reading:
    """What the job saw in one block: the largest over its ranks. ``stop``: some rank was asked to stop."""

    seconds: float
    recompiled: bool = False
    reserved_bytes: int = 0
    stop: bool = False


@dataclass
class WindowRule:
    """Feed it the reading of each block; ``block`` is how many windows run next, 0 when it is done.

    ``longest_block_s``: about what a measured block may take; at its end the measurement can be stopped.
    """

    measure: Measure
    longest_block_s: float = math.inf
    block: int = 1
    measuring: bool = False
    warmup_windows: int = 0
    windows: int = 0
    seconds: float = 0.0
    _previous: Reading | None = field(default=None, repr=False)

    def ended(self, reading: Reading) -> int:
        """The block of ``self.block`` windows took this; returns the next block's length."""
        if self.measuring:
            self.windows += self.block
            self.seconds += reading.seconds
            self.block = self._next_block()
        else:
            self.warmup_windows += self.block
            self.measuring = self._warm(reading)
            self._previous = reading
            self.block = self._cut(self.measure.min_windows, reading.seconds) if self.measuring else 1
        return self.block

    def _cut(self, windows: int, mean_s: float) -> int:
        """As many of these windows as a block may have."""
        return (
            windows
            if mean_s * windows <= self.longest_block_s
            else max(int(self.longest_block_s / mean_s), 1)
        )

    def _warm(self, now: Reading) -> bool:
        if self.warmup_windows < self.measure.min_warmup_windows:
            return False
        if self.warmup_windows >= self.measure.max_warmup_windows:
            return True
        before = self._previous
        return (
            before is not None
            and not now.recompiled
            and now.reserved_bytes == before.reserved_bytes
            and math.isclose(now.seconds, before.seconds, rel_tol=STATIONARY_TOLERANCE)
        )

    def _next_block(self) -> int:
        """As many windows as still fit into the time; the caps of the measure hold."""
        room = self.measure.max_windows - self.windows
        left_s = self.measure.max_seconds - self.seconds
        mean_s = self.seconds / self.windows
        if (least := self.measure.min_windows - self.windows) > 0:
            return self._cut(least, mean_s)
        if room <= 0 or left_s <= 0:
            return 0
        return self._cut(min(room, int(left_s / mean_s)), mean_s) if mean_s > 0 else room


def throughput(tokens: int, ends_s: Sequence[float]) -> float | None:
    """Tokens per second over the whole span; ``ends_s`` begins with the end of the last warm-up window."""
    if len(ends_s) < 2 or ends_s[-1] <= ends_s[0]:
        return None
    return tokens / (ends_s[-1] - ends_s[0])


def relative_std_error(window_times_s: Sequence[float], max_batches: int = MAX_BATCHES) -> float | None:
    """Standard error of the mean window time over that mean, from batch means; None below two windows.

    Neighbouring windows are alike, so the windows are cut into at most ``max_batches``
    equally long runs (the oldest windows beyond a whole number of runs are left out) and
    the spread of the runs' means counts (Law & Kelton, Simulation Modeling and Analysis,
    batch means). The throughput's relative error is the same to first order.
    """
    count = min(max_batches, len(window_times_s))
    if count < 2:
        return None
    length = len(window_times_s) // count
    used = window_times_s[len(window_times_s) - count * length :]
    means = [sum(used[i * length : (i + 1) * length]) / length for i in range(count)]
    mean = sum(means) / count
    if mean <= 0:
        return None
    variance = sum((m - mean) ** 2 for m in means) / (count - 1)
    return math.sqrt(variance / count) / mean
