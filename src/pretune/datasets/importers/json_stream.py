"""A JSON object that holds many entries under one name, read one by one, whether it was closed or not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.datasets.importers.base import SetAside
from pretune.datasets.importers.opened import opened_text
from pretune.errors import InputError

_CHUNK = 2**20
_LARGEST = 2**24  # characters of a header or an entry: more is no such file
_NEAR = 16  # characters: an error so near to the end may be the cut itself, in a word or a number
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[\s,]*")
_SIGN = re.compile(r"\s*:\s*")


@dataclass(frozen=True)
class Entry:
    """One entry: its line (1 is the first), its name (None in a list), its value, what stood before all."""

    line: int
    name: str | None
    value: Any
    header: dict[str, Any]


def entries(path: Path, holders: dict[str, str]) -> Iterator[Entry | SetAside]:
    """The entries of the object or list that one of ``holders`` names (name -> ``{`` or ``[``).

    What was cut off in the middle of an entry is left out: a file in use is no error. What is no JSON is set
    aside; a list ends there, an object goes on at the next line that begins with a name. Raises
    :class:`InputError` when no holder is there, or the file is not readable.
    """
    try:
        with opened_text(path) as file:
            yield from _Reader(path, iter(lambda: file.read(_CHUNK), "")).entries(holders)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); check the file") from None


class _Broken(ValueError):
    """No continuation makes an entry of what is there."""


class _Cut(ValueError):
    """What is there may become an entry when more of the file is read."""


class _Reader:
    """Holds one chunk and what is left of the one before it."""

    def __init__(self, path: Path, chunks: Iterator[str]) -> None:
        self.path, self.chunks = path, chunks
        self.text, self.at, self.line = "", 0, 1

    def entries(self, holders: dict[str, str]) -> Iterator[Entry | SetAside]:
        header = self._header(holders)
        named = self.text[self.at - 1] == "{"
        while True:
            self._skip()
            if self.text[self.at : self.at + 1] in ("", "}", "]"):
                return
            try:
                name, value, end = self._entry(named)
            except _Cut:
                if self._more():
                    continue
                return
            except _Broken:
                yield SetAside(str(self.path), self.line, "is no JSON entry; mend the line")
                if not (named and self._next_line()):
                    return
                continue
            yield Entry(self.line, name, value, header)
            self._move(end)

    def _header(self, holders: dict[str, str]) -> dict[str, Any]:
        names = "|".join(f'"{name}"\\s*:\\s*{re.escape(sign)}' for name, sign in holders.items())
        while (match := re.search(names, self.text)) is None:
            if not self._more():
                words = " or ".join(f'"{name}"' for name in holders)
                raise InputError(f"{self.path}: has no {words}; it is no file of this format, or just begun")
        try:
            header = json.loads(self.text[: match.start()].rstrip().removesuffix(",") + "}")
        except (ValueError, RecursionError):
            raise InputError(f"{self.path}: its header is no JSON; check the file") from None
        self._move(match.end())
        assert isinstance(header, dict)
        return header

    def _entry(self, named: bool) -> tuple[str | None, Any, int]:
        """Name, value and end of the entry at hand."""
        name, at = None, self.at
        if named:
            name, at = self._decoded(at, '"')
            sign = _SIGN.match(self.text, at)
            if sign is None:
                raise _Cut if len(self.text) - at < _NEAR else _Broken
            at = sign.end()
        return name, *self._decoded(at, "{")

    def _decoded(self, at: int, sign: str) -> tuple[Any, int]:
        """The value that begins with ``sign`` at ``at``, and where it ends."""
        if at == len(self.text):
            raise _Cut
        if self.text[at] != sign:
            raise _Broken
        try:
            return _DECODER.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            near = len(self.text) - error.pos < _NEAR or error.msg.startswith("Unterminated string")
            raise (_Cut if near else _Broken) from None
        except (ValueError, RecursionError):  # a number of too many digits, too deep a nesting
            raise _Broken from None

    def _next_line(self) -> bool:
        """Go to the next line that begins with a name, as caches have one for each entry."""
        while (end := self.text.find('\n"', self.at)) < 0:
            self._move(max(self.at, len(self.text) - 1))
            if not self._more():
                return False
        self._move(end + 1)
        return True

    def _skip(self) -> None:
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            self._move(match.end())
            if self.at < len(self.text) or not self._more():
                return

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _more(self) -> bool:
        """Read on and forget what was read; False at the end of the file."""
        chunk = next(self.chunks, "")
        self.text, self.at = self.text[self.at :] + chunk, 0
        if len(self.text) > _LARGEST:
            raise InputError(f"{self.path}: has an entry of more than {_LARGEST >> 20} MiB; check the file")
        return bool(chunk)
