"""Tune any callable: a kernel's block sizes, say, with the tables of other devices as history."""

from __future__ import annotations

import inspect
import math
import reprlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from pretune.datasets.knobs import KnobValue
from pretune.datasets.trial import Status
from pretune.datasets.tuning_table import SPEED
from pretune.errors import InputError
from pretune.tuner.space import Space
from pretune.tuner.strategies.transfer import next_row

Choice = Mapping[str, KnobValue]
_ONE_AT_A_TIME = threading.Lock()  # of the module, so that whoever holds a search can be pickled


@dataclass(frozen=True)
class Tried:
    """One call: its knobs, and its seconds (or its rate, where more is better); None where it raised."""

    knobs: dict[str, Any]
    value: float | None
    error: str | None = None


@dataclass(frozen=True)
class Tuned:
    """``trials`` in the order in which they ran. ``best`` is the best of them, None when all raised."""

    best: Tried | None
    trials: list[Tried]


def check_history(history: Any) -> None:
    """Raises :class:`InputError` unless it is a frame in which platforms and what they measured are told."""
    if not isinstance(history, pl.DataFrame):
        kind = type(history).__name__
        raise InputError(f"history: is a {kind}; give a polars frame, as TuningTables(DIR).frame(KERNEL)")
    for column, why in (("platform.name", "tells its devices apart"), (SPEED, "holds what was measured")):
        if column not in history.columns:
            raise InputError(f"history: column {column} is missing; it {why}")


class Search:
    """The rows of ``grid`` (a column per knob), the most promising one at a time.

    ``history``: other targets' rows in the columns of
    :meth:`~pretune.datasets.tuning_table.TuningTables.frame`, which are learned once. What was told is given
    anew each time, so that whoever keeps the trials need not keep this.
    """

    def __init__(self, grid: pl.DataFrame, history: pl.DataFrame | None, name: str, seed: int) -> None:
        from pretune.model import NoPhysics, TransferSurrogate

        self.knobs = grid.columns
        if history is not None:
            check_history(history)
        self.rows = [tuple(row) for row in grid.iter_rows()]
        self.frame = self._named(grid, name)
        self.history = history if history is not None else self.frame.clear()
        self.name = name
        self.surrogate = TransferSurrogate(name, NoPhysics(), seed)

    @staticmethod
    def _named(rows: pl.DataFrame, name: str) -> pl.DataFrame:
        return rows.rename(lambda knob: f"knob.{knob}").with_columns(pl.lit(name).alias("platform.name"))

    def next(
        self, told: Sequence[tuple[Choice, float | None]], pending: Collection[Choice] = ()
    ) -> dict[str, KnobValue] | None:
        """The row to try after ``told``: knobs with their speed (more is better), None where it failed.

        ``pending`` are being tried. None when nothing is left. One thread at a time: Optuna's ``n_jobs`` asks
        from several.
        """
        with _ONE_AT_A_TIME:
            return self._next(told, pending)

    def _next(
        self, told: Sequence[tuple[Choice, float | None]], pending: Collection[Choice]
    ) -> dict[str, KnobValue] | None:
        seen = {self._row(knobs) for knobs in [*(knobs for knobs, _ in told), *pending]}
        open_ = np.array([row not in seen for row in self.rows])
        if not open_.any():
            return None
        speeds = np.array([np.nan if speed is None else speed for _, speed in told], dtype=float)
        trials = pl.concat([self.history, self._trials(told)], how="diagonal_relaxed")
        believed = self.surrogate.fit(trials).predict(self.frame)
        row = next_row(self.surrogate, self.frame, believed, open_, np.log(speeds))
        return dict(zip(self.knobs, self.rows[row], strict=True))

    def _row(self, knobs: Choice) -> tuple[KnobValue | None, ...]:
        return tuple(knobs.get(name) for name in self.knobs)

    def _trials(self, told: Sequence[tuple[Choice, float | None]]) -> pl.DataFrame:
        if not told:
            return self.frame.clear()
        rows = pl.DataFrame(
            [self._row(knobs) for knobs, _ in told],
            schema={name: self.frame[f"knob.{name}"].dtype for name in self.knobs},
            orient="row",
        )
        status = [str(Status.CRASH if speed is None else Status.OK) for _, speed in told]
        return self._named(rows, self.name).with_columns(
            pl.Series("status", status), pl.Series(SPEED, [speed for _, speed in told], dtype=pl.Float64)
        )


def tune_function(
    function: Callable[..., float],
    space: Space | Mapping[str, Any],
    *,
    history: pl.DataFrame | None = None,
    trials: int = 20,
    maximize: bool = False,
    name: str = "here",
    seed: int = 0,
    progress: Callable[[Tried], None] | None = None,
) -> Tuned:
    """Call ``function(**knobs)`` up to ``trials`` times, and find the knobs for which it is least.

    ``space``: lists of values by knob. ``function`` returns seconds (with ``maximize`` a rate, of which more
    is better), and may raise: those knobs failed. ``history``: the same kernel on other devices
    (:meth:`~pretune.datasets.tuning_table.TuningTables.frame`); ``name`` is this device's, whose rows in it
    count as trials. ``progress`` is told each call. Raises :class:`InputError` for a space or a history that
    is none, for a function that does not take the knobs, and for what it returns unless that is a number
    above 0: what is learned are ratios.
    """
    if trials < 1:
        raise InputError(f"trials: {trials} is less than 1; give how often the function may be called")
    space = Space.of(space)
    _check_takes(function, space.knobs)
    search = Search(space.grid()[0], history, name, seed)
    columns = [f"knob.{name}" for name in space.knobs]
    if history is not None and not set(columns) & set(history.columns):
        raise InputError(f"history: has none of the knobs; it needs a column of {' or '.join(columns)}")
    told: list[tuple[Choice, float | None]] = []
    done: list[Tried] = []
    while len(done) < trials and (knobs := search.next(told)) is not None:
        tried = _called(function, knobs)
        told.append((knobs, speed_of(tried.value, maximize)))
        done.append(tried)
        if progress:
            progress(tried)
    ran = [tried for tried in done if tried.value is not None]
    best = max(ran, key=lambda tried: speed_of(tried.value, maximize) or 0.0, default=None)
    return Tuned(best, done)


def _called(function: Callable[..., float], knobs: dict[str, KnobValue]) -> Tried:
    try:
        value = function(**knobs)
    except Exception as error:  # whatever it is, the search goes on
        return Tried(knobs, None, f"{type(error).__name__}: {error}")
    try:
        return Tried(knobs, float(value))
    except (TypeError, ValueError):
        shown = reprlib.repr(value)
        raise InputError(f"the function returned {shown}: give seconds or a rate, as a number") from None


def _check_takes(function: Callable[..., float], knobs: Collection[str]) -> None:
    """Raises :class:`InputError` where every call would fail for the names of its arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # one that does not tell
    try:
        signature.bind(**dict.fromkeys(knobs))
    except TypeError as error:
        raise InputError(f"space: the function cannot be called with its knobs ({error})") from None


def speed_of(value: float | None, maximize: bool) -> float | None:
    """More is better; None and NaN are failures. Raises :class:`InputError` unless it is above 0."""
    if value is None or math.isnan(value):
        return None
    if not 0 < value < math.inf:
        raise InputError(f"the function returned {value}: give seconds or a rate, which are above 0")
    return value if maximize else 1 / value
