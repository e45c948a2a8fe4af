"""A rehearsal of production: the recommended configuration for minutes, not seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from shutil import rmtree
from typing import Any

import numpy as np
from scipy import stats

from pretune.collector.evidence import CHECKPOINT, CHECKPOINTS, MEMORY, read_json
from pretune.datasets.trial import Trial
from pretune.tuner.runner import TrialRunner, Work
from pretune.tuner.search import Sheets
from pretune.tuner.verify import Measured, Verify

MIB, GIB = 2**20, 2**30
LEAST_LOOKS = 10  # at the memory, to tell a slope
SETTLING = 0.2  # share of the looks, the first ones, in which caches still fill
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rehearsal:
    """What minutes of training showed.

    ``goodput`` is tokens per second and device over the whole run, start-up and warm-up included, beside the
    throughput of its steps. ``drift``: throughput of its last third over that of its first.
    ``of_compared``: its throughput over what the comparison measured. ``checkpoints_s``: seconds that each
    checkpoint took, between steps: in the goodput, not in the throughput. ``memory_slope_bytes_per_s``
    (low, middle, high): Theil-Sen's, with a 95 % interval, of rank 0's memory in use; None where too
    little was seen.
    """

    trial_id: str
    status: str
    cause: str | None
    seconds: float
    tokens_per_s_per_device: float | None
    goodput: float | None
    drift: float | None
    of_compared: float | None
    checkpoints_s: tuple[float, ...]
    memory_slope_bytes_per_s: tuple[float, float, float] | None
    full_after_s: float | None

    def asdict(self) -> dict[str, Any]:
        return asdict(self)

    def sentences(self) -> list[str]:
        """What to know before production, a line each."""
        if self.tokens_per_s_per_device is None:
            return [f"rehearsal: {self.status} after {self.seconds:,.0f} s: {self.cause}"]
        speed = (
            f"rehearsal of {self.seconds:,.0f} s: {self.tokens_per_s_per_device:,.0f} tokens/s per device "
            f"in its steps, {self.goodput:,.0f} with start-up"
        )
        if self.of_compared is not None and self.drift is not None:
            speed += f"; {self.of_compared:.2f}x of what was compared"
            speed += f", its end {self.drift:.2f}x of its beginning"
        return [speed, *self._checkpoints(), *self._memory()]

    def _checkpoints(self) -> list[str]:
        if not self.checkpoints_s:
            return []
        count, share = len(self.checkpoints_s), sum(self.checkpoints_s) / self.seconds
        mean = sum(self.checkpoints_s) / count
        return [f"rehearsal: {count} checkpoints of {mean:,.2g} s each, {100 * share:.2g} % of the time"]

    def _memory(self) -> list[str]:
        if self.memory_slope_bytes_per_s is None:
            return ["rehearsal: too short to tell whether memory grows"]
        low, middle, high = (slope * 3600 / MIB for slope in self.memory_slope_bytes_per_s)
        if low <= 0:
            return [f"rehearsal: no growth of memory is shown ({low:,.1f} to {high:,.1f} MiB an hour)"]
        growth = f"rehearsal: memory grows by {middle:,.1f} MiB an hour ({low:,.1f} to {high:,.1f})"
        if self.full_after_s is not None:
            growth += f": the device is full after {self.full_after_s / 3600:,.1f} h"
        return [growth]


def rehearse(verify: Verify, measured: Measured, runner: TrialRunner, sheets: Sheets) -> Rehearsal | None:
    """Run it, or find it run; ``measured`` is what the comparison recommends. None when it was not run."""
    usual = sheets("rehearsal", "verify", measured.knobs)
    spec = usual.model_copy(update={"measure": verify.measure(usual.measure)})
    trial = runner.run(Work(spec.trial_id, lambda: (spec, None)))
    if trial is None:
        return None
    folder = runner.runs / trial.trial_id
    rmtree(folder / CHECKPOINT, ignore_errors=True)
    trail, saved = (read_json(folder / name) or [] for name in (MEMORY, CHECKPOINTS))
    return described(trial, trail, measured, saved)


def described(
    trial: Trial, trail: Sequence[Sequence[float]], measured: Measured, saved: Sequence[float] = ()
) -> Rehearsal:
    """``trail``: (seconds, bytes) while it ran; ``saved``: seconds of each checkpoint."""
    speed, compared, times = (
        trial.tokens_per_s_per_device,
        measured.tokens_per_s_per_device,
        trial.window_times_s,
    )
    tokens = (speed or 0.0) * sum(times)
    if times and trial.warmup_windows:  # windows all train on as many tokens
        tokens *= (len(times) + trial.warmup_windows) / len(times)
    slope = memory_slope(trail)
    return Rehearsal(
        trial.trial_id,
        str(trial.status),
        trial.cause,
        trial.wall_s or 0.0,
        speed,
        tokens / trial.wall_s if speed and trial.wall_s else None,
        _drift(times),
        speed / compared if speed and compared else None,
        tuple(saved),
        slope,
        _full_after_s(trial, slope),
    )


def _drift(times: Sequence[float]) -> float | None:
    third = len(times) // 3
    return float(np.mean(times[:third]) / np.mean(times[-third:])) if third else None


def memory_slope(trail: Sequence[Sequence[float]]) -> tuple[float, float, float] | None:
    """Bytes per second: low, middle and high. Sen 1968 (doi 10.1080/01621459.1968.10480934)."""
    settled = trail[int(len(trail) * SETTLING) :]
    if len(settled) < LEAST_LOOKS:
        return None
    seconds, used = np.array(settled, dtype=float).T
    found = stats.theilslopes(used, seconds - seconds[0], CONFIDENCE)
    return float(found.low_slope), float(found.slope), float(found.high_slope)


def _full_after_s(trial: Trial, slope: tuple[float, float, float] | None) -> float | None:
    capacity, peak = trial.platform.accelerator.memory_bytes, trial.peak_memory_device_bytes
    if slope is None or slope[0] <= 0 or not capacity or not peak:
        return None
    return max(capacity - peak, 0) / slope[1]
