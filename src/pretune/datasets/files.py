"""One Parquet file of a store: read in the store's columns, or named with the reason why it cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pretune.datasets.conform import Misfit, NewerVersion, conformed, is_own
from pretune.datasets.durable import is_local
from pretune.errors import PretuneError, StoreError

MERGED = "merged-"  # how the names of files begin that replace others
REPLACES_KEY = b"pretune.replaces"  # ... and where they say which, as a JSON list of names in their folder
ROWS_AT_ONCE = 1000  # that are held as Python objects


class UnreadableFile(StoreError):
    """A file that holds no trials that this pretune can read. ``newer``: another pretune can."""

    def __init__(self, path: Path, reason: str, newer: bool = False) -> None:
        self.path, self.reason, self.newer = path, reason, newer
        super().__init__(f"{path}: {reason}")


def read(path: Path) -> pa.Table:
    """The file in the store's columns; raises :class:`UnreadableFile`."""
    with _readable(path, "cannot be read ({})"):
        table = conformed(_open(path).read(use_threads=False))  # most files hold few rows
        table.validate(full=True)
        return table


def columns(path: Path) -> pa.Schema:
    """The file's columns, as they are there; raises :class:`UnreadableFile` when they are not a trial's."""
    with _readable(path, "is truncated or no Parquet file ({})"):
        found = _open(path).schema_arrow
        is_own(found)
        return found


def count(path: Path) -> int:
    """How many rows the file holds, by its footer; raises :class:`UnreadableFile`."""
    return int(_open(path).metadata.num_rows)


def replaced_by(path: Path) -> list[str]:
    """The names of the files that a merged file holds, and that need no reading any more."""
    if not path.name.startswith(MERGED):
        return []
    try:
        names: list[str] = json.loads((columns(path).metadata or {}).get(REPLACES_KEY, b"[]"))
    except (UnreadableFile, ValueError):
        return []  # what it replaced is read instead, while it is there
    return names


def rows_of(table: pa.Table) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every row with its number, few of them as Python objects at any time."""
    batches = table.to_batches(max_chunksize=ROWS_AT_ONCE)
    yield from enumerate(row for batch in batches for row in batch.to_pylist())


@contextmanager
def reached(path: Path, reason: str) -> Iterator[None]:
    """Whatever a disk or a remote store refuses becomes a :class:`StoreError` that names the place."""
    try:
        yield
    except PretuneError:
        raise
    except Exception as error:
        if is_local(path) and not isinstance(error, OSError):
            raise
        raise StoreError(f"{path}: {reason.format(_words(error))}") from None


def _open(path: Path) -> pq.ParquetFile:
    with _readable(path, "is truncated or no Parquet file ({})"):
        source = path if is_local(path) else path.open("rb")
        return pq.ParquetFile(source, page_checksum_verification=True)


@contextmanager
def _readable(path: Path, reason: str) -> Iterator[None]:
    """Whatever a decoder says of a damaged file becomes an :class:`UnreadableFile`."""
    try:
        yield
    except UnreadableFile:
        raise
    except Misfit as error:
        raise UnreadableFile(path, str(error), isinstance(error, NewerVersion)) from None
    except Exception as error:
        raise UnreadableFile(path, reason.format(_words(error))) from None


def _words(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())
