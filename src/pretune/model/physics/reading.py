"""What the formulas make of one frame, each worked out once, when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import polars as pl

from pretune.model.base import Array
from pretune.model.physics import memory
from pretune.model.physics.setup import Setup, read_setup
from pretune.model.physics.step import Parts, read_parts, step_time


class Reading:
    """n rows: their ``setup``, the ``parts`` of their step, and the ``terms`` (n, 2, k) of their memory."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame
        self._step: tuple[bytes, tuple[Array, Array]] | None = None

    @cached_property
    def setup(self) -> Setup:
        return read_setup(self.frame)

    @cached_property
    def parts(self) -> Parts:
        with np.errstate(divide="ignore", invalid="ignore"):
            return read_parts(self.setup)

    @cached_property
    def terms(self) -> Array:
        return memory.terms(self.setup)

    def step(self, constants: Array) -> tuple[Array, Array]:
        """(n,) log seconds of a step, and (n, c) how it moves with each of the ``constants`` (c,)."""
        key = constants.tobytes()
        if self._step is None or self._step[0] != key:
            with np.errstate(divide="ignore", invalid="ignore"):
                self._step = key, step_time(self.parts, constants)
        return self._step[1]


class _Kept(threading.local):
    inside = False
    last: Reading | None = None


_kept = _Kept()


def reading(frame: pl.DataFrame) -> Reading:
    """The frame's reading: inside of :func:`read_once` the last one, if it was of this very frame."""
    if not _kept.inside:
        return Reading(frame)
    if _kept.last is None or _kept.last.frame is not frame:
        _kept.last = Reading(frame)
    return _kept.last


@contextmanager
def read_once() -> Iterator[None]:
    """Inside, and on this thread, a frame that physics is asked of again and again is read once.

    Only inside: there nobody changes the frame between two questions.
    """
    if _kept.inside:
        yield
        return
    _kept.inside = True
    try:
        yield
    finally:
        _kept.inside, _kept.last = False, None
