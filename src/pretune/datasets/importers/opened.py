"""Files as importers open them, compressed or not; whoever shows progress hears how much was read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

_AT_ONCE = 2**18  # bytes of a read, and so between two tellings
_PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_tell: ContextVar[Callable[[int], object] | None] = ContextVar("tell", default=None)


@contextmanager
def telling(tell: Callable[[int], object]) -> Iterator[None]:
    """Inside, ``tell`` hears of every read how many bytes it gave."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def opened(path: Path) -> io.BufferedReader[Any]:
    """The file's bytes, of ``.gz``, ``.bz2`` and ``.xz`` those inside; raises OSError as ``open`` does."""
    told = io.BufferedReader(_Told(path), _AT_ONCE)
    return told if path.suffix not in _PACKED else io.BufferedReader(_Unpacked(told, path.suffix), _AT_ONCE)


def opened_text(path: Path, encoding: str = "utf-8", newline: str | None = None) -> io.TextIOWrapper:
    """The file's text, with a mark in place of what is none of its encoding."""
    return io.TextIOWrapper(opened(path), encoding, "replace", newline)


class _Told(io.FileIO):
    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = super().readinto(buffer) or 0
        if tell := _tell.get():
            tell(count)
        return count


class _Unpacked(io.RawIOBase):
    """What is inside; of a file that is cut off, or still being written, what can be told so far."""

    def __init__(self, file: Any, suffix: str) -> None:
        self._file, self._suffix = file, suffix
        self._inside = _PACKED[suffix](file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            inside = self._inside.read1(len(buffer))  # what there is, before it meets the end
        except EOFError:
            return 0
        except (zlib.error, lzma.LZMAError, OSError) as error:
            raise OSError(f"damaged {self._suffix}: {error}") from None
        buffer[: len(inside)] = inside
        return len(inside)

    def close(self) -> None:
        self._inside.close()
        self._file.close()
        super().close()
