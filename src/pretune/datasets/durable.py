"""What must outlive a kill and a power cut: files that appear whole, and entries that live in a folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which becomes ``path`` when the block ends: a reader sees the old one or the new one.

    ``durable``: on disk then. When the block or the disk fails, the old file stays and nothing is left
    behind; a killed writer leaves at most one hidden file, which readers skip. Raises :class:`OSError`.
    """
    temporary = path.with_name(f".writing-{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, durably. Raises :class:`OSError`."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames and new entries in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
