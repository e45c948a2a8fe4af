"""What keeps a store fit for years: damaged files moved aside, and small files merged into large ones."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pretune.datasets.conform import is_own
from pretune.datasets.durable import UNFINISHED, is_local, make_folder, sync_folder, whole_file
from pretune.datasets.faults import strays
from pretune.datasets.files import MERGED, REPLACES_KEY, UnreadableFile, columns, count, read, replaced_by
from pretune.datasets.store import TrialStore, file_stem
from pretune.errors import StoreError

ASIDE = "aside"  # the folder for what cannot be read
ABANDONED_S = 3600.0  # after which nobody is at a file any more that is still unfinished
SMALL_ROWS = 100_000  # files of fewer trials are merged
GRACE_S = 300.0  # how long a file that was replaced stays for those who are reading it


@dataclass(frozen=True)
class Moved:
    """One file that was moved: from where, to where, and why."""

    file: str
    to: str
    reason: str


def repair(store: TrialStore) -> list[Moved]:
    """Move aside what cannot be read, each with its reason in a file beside it; nothing is deleted.

    A file of a newer schema version stays, since it is sound. So do rows that are no trials, in files that
    can be read: readers leave them out.
    """
    bad = list(strays(store))
    for path in store.files():
        try:
            read(path)
        except UnreadableFile as error:
            if not error.newer:
                bad.append((path, error.reason))
    bad += [(path, "its writer did not finish it") for path in _abandoned(store)]
    return [Moved(str(path), str(move_aside(store, path, reason)), reason) for path, reason in bad]


def move_aside(store: TrialStore, path: Path, reason: str) -> Path:
    """Move one file to ``aside/`` under the store's root, the reason first; returns its new place."""
    folder = store.root / ASIDE / path.parent.name if path.parent != store.root else store.root / ASIDE
    make_folder(folder)
    target, number = folder / path.name, 1
    while target.exists():
        target, number = folder / f"{path.name}.{number}", number + 1
    with whole_file(folder / f"{target.name}.reason.txt") as file:
        file.write(f"{path}: {reason}\n".encode())
    path.rename(target)
    if is_local(path):
        sync_folder(folder)
        sync_folder(path.parent)
    return target


def _abandoned(store: TrialStore) -> list[Path]:
    if not is_local(store.root):
        return []  # an object is whole or not there
    found = sorted(store.root.glob(f"platform=*/{UNFINISHED}*"))
    return [path for path in found if time.time() - path.stat().st_mtime > ABANDONED_S]


@dataclass(frozen=True)
class Compacted:
    """What a compaction did: files that it wrote, how many others those replace, and how many it removed."""

    merged: list[str]
    replaced: int
    removed: int


def compact(store: TrialStore, grace_s: float = GRACE_S) -> Compacted:
    """Merge the small files of each platform into one; a reader sees every trial once at every moment.

    The merged file names those that it replaces, and appears whole: from then on readers skip them. They are
    removed by the first compaction that comes ``grace_s`` later, when nobody reads them any more. Killed at
    any moment, it is continued by the next. Others may append meanwhile. Files of other tools, and those
    that cannot be read, stay as they are. Raises :class:`StoreError` when another compaction is running;
    behind a URL nothing tells, and there must be only one.
    """
    with _alone(store):
        removed = _remove_replaced(store, grace_s)
        merged, replaced = [], 0
        for _, files in groupby(store.files(), key=lambda path: path.parent):
            for group in _alike(files):
                merged.append(str(_merge(store, group)))
                replaced += len(group)
        if grace_s <= 0:
            removed += _remove_replaced(store, grace_s)
    return Compacted(merged, replaced, removed)


@dataclass
class _Group:
    """Small files whose columns go together, and how many rows they hold."""

    schema: pa.Schema
    rows: int
    files: list[Path]

    def takes(self, schema: pa.Schema, rows: int, path: Path) -> bool:
        """Add a file, unless there are enough or one of its knobs has another type here."""
        if self.rows >= SMALL_ROWS:
            return False
        try:
            self.schema = pa.unify_schemas([self.schema, schema])
        except pa.ArrowException:
            return False
        self.rows += rows
        self.files.append(path)
        return True


def _alike(files: Iterable[Path]) -> list[list[Path]]:
    """The small files of one platform, in groups of two or more that one file can hold."""
    groups: list[_Group] = []
    for path in files:
        try:
            schema, rows = columns(path), count(path)
            if rows >= SMALL_ROWS or not is_own(schema):
                continue
            read(path)  # what is damaged inside stays for repair
        except UnreadableFile:
            continue
        schema = schema.remove_metadata()
        if not any(group.takes(schema, rows, path) for group in groups):
            groups.append(_Group(schema, rows, [path]))
    return [group.files for group in groups if len(group.files) > 1]


def _merge(store: TrialStore, files: list[Path]) -> Path:
    """Write what the files hold, each trial once, to one file that replaces them."""
    table = _once(pa.concat_tables([read(path) for path in files], promote_options="default"))
    folder = files[0].parent
    path = folder / f"{MERGED}{file_stem(table['trial_id'].to_pylist())}.parquet"
    names = {each.name for each in files}
    for each in files:  # what those replaced may still be there
        names.update(name for name in replaced_by(each) if (folder / name).exists())
    metadata = {**(table.schema.metadata or {}), REPLACES_KEY: json.dumps(sorted(names - {path.name}))}
    store.put(table.replace_schema_metadata(metadata), path)
    return path


def _once(table: pa.Table) -> pa.Table:
    """Without the rows that are the same as an earlier one; two trials under one id are both kept."""
    ids = table["trial_id"]
    if pc.count_distinct(ids).as_py() == len(table):
        return table
    seen: set[str] = set()
    keep = []
    for row in table.to_pylist():
        text = json.dumps(row, default=str, sort_keys=True)
        keep.append(text not in seen)
        seen.add(text)
    return table.filter(pa.array(keep))


def _remove_replaced(store: TrialStore, grace_s: float) -> int:
    """Remove what merged files replaced that long ago, once they are seen to be sound on disk."""
    removed = 0
    for path in store.files():
        names = [name for name in replaced_by(path) if (path.parent / name).exists()]
        if not names or time.time() - _written_at_s(path) < grace_s:
            continue
        try:
            read(path)
        except UnreadableFile:
            continue
        for name in names:
            (path.parent / name).unlink()
            removed += 1
    return removed


def _written_at_s(path: Path) -> float:
    if is_local(path):
        return path.stat().st_mtime
    return float(path.fs.modified(path.path).timestamp())  # type: ignore[attr-defined]


@contextmanager
def _alone(store: TrialStore) -> Iterator[None]:
    """Holds the lock of the store's folder. The kernel drops it with the process that held it."""
    if not is_local(store.root):
        yield
        return
    folder = os.open(store.root, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StoreError(f"{store.root}: is being compacted by another process; wait for it") from None
    finally:
        os.close(folder)
