"""Files as importers open them: whoever shows progress is told how many bytes were read."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_AT_ONCE = 2**18  # bytes of a read, and so between two tellings
_tell: ContextVar[Callable[[int], object] | None] = ContextVar("tell", default=None)


@contextmanager
def telling(tell: Callable[[int], object]) -> Iterator[None]:
    """Inside, ``tell`` hears of every read how many bytes it gave."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def opened(path: Path) -> io.BufferedReader:
    """The file's bytes; raises OSError as ``open`` does."""
    return io.BufferedReader(_Told(path), _AT_ONCE)


def opened_text(path: Path, encoding: str = "utf-8", newline: str | None = None) -> io.TextIOWrapper:
    """The file's text, with a mark in place of what is none of its encoding."""
    return io.TextIOWrapper(opened(path), encoding, "replace", newline)


class _Told(io.FileIO):
    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = super().readinto(buffer) or 0
        if tell := _tell.get():
            tell(count)
        return count
