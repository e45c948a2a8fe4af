"""The seam of the importers: a format reads files into runs, and what all have in common is done once."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pretune.errors import InputError


@dataclass(frozen=True)
class Span:
    """The measured part of a log: from the end of line ``after`` (the last of the warm-up) to that of line
    ``to``, in which ``windows`` optimizer steps took ``seconds``."""

    after: int
    to: int
    windows: int
    seconds: float


@dataclass(frozen=True)
class Run:
    """One run as its log states it, before anything is derived or checked.

    ``values``: what the log states, by column of the store (``model.layers``, ``knob.tp``,
    ``step_time_s``, ``status``; SI units), nothing guessed. ``key``: what tells this run from all others,
    and stays the same while its log grows: the same key is the same trial. ``line``: where it begins (the
    first is 1). ``span``: which lines tell of its measured steps, where lines came while it ran.
    """

    line: int | None
    key: str
    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)  # what was odd but harmless; the account adds the file
    span: Span | None = None


@dataclass(frozen=True)
class SetAside:
    """Something that did not become a trial: the file, the line, the reason with its remedy."""

    file: str
    line: int | None
    reason: str


class Contradiction(Exception):
    """Why a run cannot be a trial, with the remedy."""


def digest(told: str, characters: int = 20) -> str:
    """Tells runs apart by what is ``told`` of them; the start of its SHA-256 in hexadecimal."""
    return hashlib.sha256(told.encode()).hexdigest()[:characters]


class Importer(ABC):
    """One format. ``read`` streams: it never holds more than one run of a file.

    A file that is cut off or still being written yields the runs it has so far. A line that cannot be
    understood is set aside, never an exception; :class:`~pretune.errors.InputError` when a whole file
    is not of the format, or not readable at all.
    """

    name: ClassVar[str]  # as in `pretune import NAME`
    reads: ClassVar[str]  # what its files are, for the README's table
    fills: ClassVar[tuple[str, ...]]  # the columns of the store that it can fill, for the README's table
    pattern: ClassVar[str] = "*"  # of the names of its files in a folder
    maps: ClassVar[bool] = False  # whether it is made with the user's Mapping of names, or None

    @abstractmethod
    def read(self, path: Path) -> Iterator[Run | SetAside]:
        """The runs of one file, in order."""

    def sources(self, path: Path | str) -> Iterable[Any]:
        """What there is to ``read`` at a path: the file, or all files in the folder that fit ``pattern``.
        An importer of what is no file (a server) yields what its own ``read`` takes.

        Raises :class:`InputError` where there is nothing.
        """
        place = Path(path)
        if place.is_file():
            return [place]
        if not place.is_dir():
            raise InputError(f"{path}: there is no such file or folder; check the path")
        found = sorted(file for file in place.rglob(self.pattern) if file.is_file())
        if not found:
            raise InputError(
                f"{path}: holds no file {self.pattern}; name the files of {self.name} themselves"
            )
        return found
