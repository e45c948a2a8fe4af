"""What must outlive a kill and a power cut: files that appear whole, and entries that live in a folder."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urlparse

from pretune.errors import InputError

UNFINISHED = ".writing-"  # how the names of files begin that a writer is at, or was killed at


def location(root: str | Path) -> Path:
    """The folder of that name: of this machine, or behind any URL that fsspec knows (``s3://bucket/history``).

    Behind a URL it is a ``UPath``, which has the methods of a path. Raises :class:`InputError` when what
    reads such URLs is not installed.
    """
    url = str(root)
    if "://" not in url:
        return Path(root)
    if url.startswith("file://"):
        return Path(unquote(urlparse(url).path))
    try:
        from upath import UPath

        # other writers' files must be seen, so listings are not kept
        place = UPath(url, use_listings_cache=False)
        _ = place.fs  # what speaks its protocol is imported only here
        return cast(Path, place)
    except ImportError as error:
        raise InputError(f"{url}: {error}; pip install 'pretune[remote]'") from None
    except ValueError as error:
        raise InputError(f"{url}: {error}; name a folder, or a URL that fsspec knows") from None


def is_local(path: Path) -> bool:
    """Whether renames are atomic there; object stores put whole objects instead."""
    return isinstance(path, Path)


@contextmanager
def whole_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which becomes ``path`` when the block ends: a reader sees the old one or the new one.

    ``durable``: on disk then. When the block or the disk fails, the old file stays and nothing is left
    behind; a killed writer leaves at most one hidden file, which readers skip. Raises :class:`OSError`.
    Behind a URL the file is one object, put at once.
    """
    if not is_local(path):
        data = io.BytesIO()
        yield data
        path.fs.pipe_file(path.path, data.getvalue())  # type: ignore[attr-defined]
        return
    temporary = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
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
    if is_local(folder) and not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def named_folder(folder: Path, named: str) -> None:
    """Make the folder that a user ``named``, as in ``--out DIR``, before the work that will fill it. Behind a
    URL there is nothing to make. Raises :class:`InputError` when it cannot be made."""
    try:
        make_folder(folder)
    except OSError as error:
        raise InputError(f"{named}: cannot be made ({error.strerror}); name another folder") from None


def sync_folder(folder: Path) -> None:
    """Make the renames and new entries in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
