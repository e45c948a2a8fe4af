"""Beside the best: what else is good, what trades throughput for something, and what each knob does there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.trial import Trial
from pretune.model.base import Array, Prediction
from pretune.tuner.space import Candidates, key
from pretune.tuner.tuner import Tuner

ENERGY = "gpu_energy_j"  # of rank 0's device, over the measured windows
MEMORY = tuple(f"peak_memory_{kind}_bytes" for kind in ("device", "reserved", "allocated"))
RUNNERS_UP = 4

Varied = Mapping[str, Sequence[KnobValue]]  # the knobs that a space varies, with their values


@dataclass(frozen=True)
class Point:
    """A configuration that ran, with what may be weighed against throughput; None where not known.

    ``headroom_bytes``: what the fullest device had left. ``joules_per_token`` are a device's, by its tokens.
    """

    trial_id: str
    knobs: dict[str, KnobValue]
    tokens_per_s_per_device: float
    headroom_bytes: float | None
    joules_per_token: float | None


@dataclass(frozen=True)
class Alternative:
    """Another value of one knob, all else as in the best: throughput over the best's, predicted by the model
    that has learned the session's trials, and measured where it was tried (0 where that failed)."""

    value: KnobValue | None
    predicted: float | None
    chance_to_run: float | None
    measured: float | None


@dataclass(frozen=True)
class Why:
    """A knob with the value that it has in the best, and what each other one would bring."""

    knob: str
    value: KnobValue | None
    alternatives: list[Alternative]


@dataclass(frozen=True)
class Reasons:
    """``default_place``: where the default stands among the candidates by prediction, from 1; None where
    it is not one, or nothing predicts."""

    runners_up: list[Point]
    pareto: list[Point]
    why: list[Why]
    default_place: tuple[int, int] | None

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


def reasons(
    tuner: Tuner, varied: Varied, best: Knobs, default: Knobs, compared: Iterable[Trial] = ()
) -> Reasons:
    """Around ``best``, over the knobs that the space varies; ``compared``: trials beside the search's."""
    believed, trials = tuner.strategy.predict(), [*tuner.trials, *compared]
    points = _points(trials)
    others = [point for point in points if key(Knobs(**point.knobs)) != key(best)]
    return Reasons(
        others[:RUNNERS_UP],
        pareto(points),
        [_why(tuner, trials, believed, name, varied, best) for name in varied],
        _place(tuner.candidates, believed, default),
    )


def _points(trials: Iterable[Trial]) -> list[Point]:
    """One for each configuration that ran, the fastest first."""
    ran: dict[Any, list[Trial]] = {}
    for trial in trials:
        if trial.ok and trial.tokens_per_s_per_device:
            ran.setdefault(key(trial.knobs), []).append(trial)
    return sorted(map(_point, ran.values()), key=lambda point: -point.tokens_per_s_per_device)


def _point(repeats: Sequence[Trial]) -> Point:
    """The mean of a configuration's trials, since the best of them flatters it; of memory, the least left."""
    left = [_headroom(trial) for trial in repeats]
    joules = [_joules_per_token(trial) for trial in repeats]
    return Point(
        repeats[0].trial_id,
        repeats[0].knobs.settings(),
        _mean_speed(repeats),
        min((each for each in left if each is not None), default=None),
        fmean(known) if (known := [each for each in joules if each is not None]) else None,
    )


def _headroom(trial: Trial) -> float | None:
    capacity = trial.platform.accelerator.memory_bytes
    peak = next((bytes_ for name in MEMORY if (bytes_ := getattr(trial, name))), None)
    return None if capacity is None or peak is None else float(capacity - peak)


def _joules_per_token(trial: Trial) -> float | None:
    tokens = (trial.tokens_per_s_per_device or 0.0) * sum(trial.window_times_s)
    energy = trial.counters.get(ENERGY)
    return None if energy is None or not tokens else energy / tokens


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those that no other one beats in throughput, memory left and energy at once; what is not known of
    every point is not weighed. A session's trials all take the same devices."""
    sides = np.array([[point.tokens_per_s_per_device, *_beside(point)] for point in points], dtype=float)
    sides = sides.reshape(len(points), 3)
    sides = sides[:, np.isfinite(sides).all(axis=0)]
    return [point for point, mine in zip(points, sides, strict=True) if not _beaten(mine, sides)]


def _beaten(mine: Array, sides: Array) -> bool:
    """Whether some row of (n, k) ``sides`` is no worse than (k,) ``mine`` anywhere, and better somewhere."""
    return bool(((sides >= mine).all(axis=1) & (sides > mine).any(axis=1)).any())


def _beside(point: Point) -> tuple[float, float]:
    """More is better."""
    headroom, joules = point.headroom_bytes, point.joules_per_token
    return (np.nan if headroom is None else headroom, np.nan if joules is None else -joules)


def _why(
    tuner: Tuner, trials: Sequence[Trial], believed: Prediction | None, name: str, varied: Varied, best: Knobs
) -> Why:
    now = best.settings().get(name)
    top = _mean_speed([trial for trial in trials if key(trial.knobs) == key(best)])
    at = tuner.candidates.row_of(best)
    others = [value for value in varied[name] if value != now]
    rows = [(value, _row_with(tuner, believed, name, value, varied, best)) for value in others]
    found = [
        Alternative(
            value,
            float(believed.mean[row] / believed.mean[at]) if believed and at is not None else None,
            float(believed.chance_to_run[row]) if believed else None,
            _measured(trials, tuner.candidates.knobs[row], top),
        )
        for value, row in rows
        if row is not None
    ]
    return Why(name, now, found)


def _row_with(
    tuner: Tuner,
    believed: Prediction | None,
    name: str,
    value: KnobValue,
    varied: Varied,
    best: Knobs,
) -> int | None:
    """The most promising candidate that differs from ``best`` in one knob, and in those which one of the
    two does not read."""
    candidates, settings = tuner.candidates, best.settings() | {name: value}
    declared = find_framework(candidates.framework)
    unread = [declared.unread(candidates.platform, each) for each in (best, Knobs(**settings))]
    alike = [other for other in varied if other == name or not any(other in each for each in unread)]
    rows = candidates.alike(settings, alike)
    if believed is None:
        return rows[0] if rows else None
    worth = believed.mean * believed.chance_to_run
    return max(rows, key=lambda row: float(worth[row]), default=None)


def _measured(trials: Sequence[Trial], knobs: Knobs, top: float) -> float | None:
    same = [trial for trial in trials if key(trial.knobs) == key(knobs)]
    if not same or not top:
        return None
    return _mean_speed(same) / top


def _mean_speed(repeats: Sequence[Trial]) -> float:
    """0 where none of them ran."""
    return fmean([each.tokens_per_s_per_device or 0.0 for each in repeats if each.ok] or [0.0])


def _place(candidates: Candidates, believed: Prediction | None, default: Knobs) -> tuple[int, int] | None:
    row = candidates.row_of(default)
    if row is None or believed is None:
        return None
    worth = believed.mean * believed.chance_to_run
    return int((worth > worth[row]).sum()) + 1, len(candidates)
