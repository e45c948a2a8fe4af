"""Tables in Markdown documents: a row with the headings above it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pretune.datasets.importers.base import SetAside
from pretune.datasets.importers.lines import numbered
from pretune.errors import InputError

_HEADING = re.compile(r"(#+) +(.*?)\s*$")
_RULE = re.compile(r"[\s|:-]+$")


@dataclass(frozen=True)
class Row:
    """One row of a table: its line (1 is the first), its cells by column, the headings it stands under."""

    line: int
    cells: dict[str, str]
    headings: list[str]


def rows(path: Path, needed: Collection[str]) -> Iterator[Row | SetAside]:
    """The rows of those tables that have the ``needed`` columns.

    A row whose cells are not as many as its columns cannot be read by position, and is set aside. Raises
    :class:`InputError` when no table of the file has the columns.
    """
    headings: dict[int, str] = {}
    columns: list[str] = []
    tables = 0
    for number, line in numbered(path):
        if match := _HEADING.match(line):
            level = len(match[1])
            headings = {depth: text for depth, text in headings.items() if depth < level}
            headings[level] = match[2]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = _cells(line)
            tables += _has(columns, needed)
        elif not _RULE.match(line) and _has(columns, needed):
            cells = _cells(line)
            if len(cells) == len(columns):
                yield Row(number, dict(zip(columns, cells, strict=True)), list(headings.values()))
            else:
                reason = f"has {len(cells)} cells under {len(columns)} headings; mend the table"
                yield SetAside(str(path), number, reason)
    if not tables:
        raise InputError(f"{path}: has no table with the columns {', '.join(needed)}")


def _has(columns: list[str], needed: Collection[str]) -> bool:
    return all(name in columns for name in needed)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
