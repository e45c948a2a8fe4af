"""The lines of a log as importers read them: numbered, without colours, of bounded length, whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pretune.datasets.importers.opened import opened
from pretune.errors import InputError

MAX_LINE = 64 * 1024  # bytes of a line that are looked at; some print a whole configuration in one

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# who wrote a line, as launchers put it before it, each with the launcher that does
_WRITER = re.compile(
    r"\s*(?:"
    r"\[(?:default|rank)\d+\]:(?:\[titan\] )?"  # torchrun; torchtitan adds its name
    r"|\[[\w.-]*rank-?\d+\]:"
    r"|[\w.-]+/\d+ (?=\[|Training|Epoch|Step| \[)"  # NeMo-Run: job/replica
    r"|\d+: (?!\d)"  # srun --label
    r")"
)


def numbered(path: Path, tail: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers; a progress bar's carriage returns part lines of one number.

    The last line is left out while it has no line end: its figures may be cut, and a cut figure is a wrong
    one. ``tail`` keeps it, for formats whose lines prove themselves whole. What exceeds ``MAX_LINE`` is
    dropped. Raises :class:`InputError` when the file cannot be read.
    """
    try:
        with opened(path) as file:
            number, rest = 1, b""
            while chunk := file.readline(MAX_LINE):
                ended = chunk.endswith(b"\n")
                pieces = (rest + chunk).rstrip(b"\r\n" if ended else b"").split(b"\r")
                rest = b"" if ended else pieces.pop()[: MAX_LINE + 1]
                for piece in pieces:
                    yield number, _clean(piece)
                number += ended
            if tail and rest:
                yield number, _clean(rest)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); give a log file") from None


def _clean(line: bytes) -> str:
    if len(line) > MAX_LINE:
        line = line[:MAX_LINE].rpartition(b" ")[0]  # the last word may be cut
    text = line.decode("utf-8", errors="replace")
    return _ANSI.sub("", text) if "\x1b" in text else text


def unprefixed(line: str) -> str:
    """The line without what launchers put before it to say which rank wrote it."""
    while match := _WRITER.match(line):
        line = line[match.end() :]
    return line


def real(text: str) -> float | None:
    """A figure as logs print them (``1,234.5``, ``1e-3``, ``nan``); None when it is none."""
    try:
        return float(text.strip().replace(",", ""))
    except ValueError:
        return None


def positive(text: str | None) -> float | None:
    """A figure above 0 that a log can mean (1e-18 to 1e18), else None."""
    value = real(text) if text is not None else None
    return value if value is not None and 1e-18 < value < 1e18 else None


def whole(text: str | None) -> int | None:
    """A whole number above 0, else None."""
    value = positive(text)
    return int(value) if value is not None and value == int(value) and value < 2**53 else None


def counts(columns: Mapping[str, str], stated: Mapping[str, Any]) -> dict[str, Any]:
    """The whole numbers of ``stated`` by column of the store; ``columns``: name there -> column."""
    found = ((column, whole(str(stated.get(name)))) for name, column in columns.items())
    return {column: count for column, count in found if count is not None}


def rates(columns: Mapping[str, tuple[str, float]], figures: Mapping[str, str]) -> dict[str, float]:
    """The figures above 0 by column; ``columns``: label -> column, and what to multiply with."""
    found = ((column, factor, positive(figures.get(label))) for label, (column, factor) in columns.items())
    return {column: factor * value for column, factor, value in found if value is not None}


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None when it is none, or is cut off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fields(text: str, separator: str = "|", sign: str = ":") -> dict[str, str]:
    """``label: value | label: value`` as a dict; what has no value is left out."""
    pairs = (part.rpartition(sign) for part in text.split(separator))
    return {" ".join(label.split()): value.strip() for label, _, value in pairs if value.strip()}
