"""A recorder in a training that calls back, rather than runs inside a ``with`` block."""

from __future__ import annotations

import atexit
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any

from pretune.collector.recorder import TrialRecorder
from pretune.errors import PretuneError


class Attached:
    """Begun and ended by hooks; an exception that nobody catches in between is recorded as the trial's end.

    It never stops the training: what keeps it from recording is a warning.
    """

    def __init__(self) -> None:
        self.recorder: TrialRecorder | None = None
        self._pause: AbstractContextManager[None] | None = None

    def begin(self, made: Callable[[], TrialRecorder]) -> None:
        """Begin with the recorder that ``made`` makes, on every rank alike."""
        try:
            self.recorder = made().__enter__()
        except PretuneError as trouble:
            warnings.warn(f"no trial is recorded: {trouble}", stacklevel=3)
            return
        self._before, sys.excepthook = sys.excepthook, self._raised
        atexit.register(self._left)

    def step(self, loss: Any = None) -> None:
        """One optimizer step ended."""
        self.resume()
        if self.recorder is not None:
            self.recorder.step(loss=loss)

    def pause(self) -> None:
        """What follows is no training, until ``resume`` or the next step."""
        if self.recorder is not None and self._pause is None:
            self._pause = self.recorder.pause()
            self._pause.__enter__()

    def resume(self) -> None:
        if self._pause is not None:
            self._pause.__exit__(None, None, None)
            self._pause = None

    def outside(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """``work`` as it is, but no part of a step; one such thing may call another."""

        @wraps(work)
        def called(*rest: Any, **more: Any) -> Any:
            if self._pause is not None:
                return work(*rest, **more)
            self.pause()
            try:
                return work(*rest, **more)
            finally:
                self.resume()

        return called

    def end(self, error: BaseException | None = None) -> None:
        """The training ended, well or with ``error``."""
        self.resume()
        if self.recorder is not None:
            recorder, self.recorder = self.recorder, None
            sys.excepthook = self._before
            atexit.unregister(self._left)
            recorder.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def _left(self) -> None:
        """The script ended before enough was measured; its ranks cannot be asked any more."""
        if self.recorder is not None:
            self.recorder.abandon()

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before = self._before
        self.end(error)
        before(kind, error, trace)
