"""Where trials live: an append-only Parquet dataset with one folder per platform."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from pretune.datasets import files, schema
from pretune.datasets.conform import is_own
from pretune.datasets.durable import is_local, location, make_folder, whole_file
from pretune.datasets.faults import Fault, faults_of
from pretune.datasets.spec import one_line
from pretune.datasets.trial import Trial
from pretune.errors import StoreError, StoreWarning

if TYPE_CHECKING:
    import polars as pl

MANY = re.compile(r"\d+-[0-9a-f]{16}")  # name of a file that holds several trials, see file_stem
FILE, FILE_ROW = "store.file", "store.row"  # columns of a frame that say where its rows lie


class TrialStore:
    """An append-only set of trials under ``root``, partitioned by platform.

    ``root`` is a folder, or any URL that fsspec knows. A file appears whole or not at all: it is written
    beside its place, synced, and renamed; behind a URL it is one object. Its name comes from the ids of the
    trials in it, so the same trials appended twice, or by two writers, are stored once.

    A file that cannot be read costs its own trials and a :class:`~pretune.errors.StoreWarning` that names it.
    Files of older versions and of other tools are read to one schema (:mod:`pretune.datasets.conform`).
    """

    def __init__(self, root: str | Path) -> None:
        self.root = location(root)

    def __repr__(self) -> str:
        return f"TrialStore({str(self.root)!r})"

    # -- writing ------------------------------------------------------------------
    def append(self, trials: Trial | Iterable[Trial]) -> list[Path]:
        """Write the trials, one file per platform; returns the files. Durable on return.

        Raises :class:`StoreError` when a file cannot be written (disk full, no permission); then the
        store is as it was before that file.
        """
        trials = [trials] if isinstance(trials, Trial) else list(trials)
        by_platform: dict[str, list[Trial]] = defaultdict(list)
        for trial in trials:
            by_platform[trial.platform.name].append(trial)
        return [self._append(name, group) for name, group in by_platform.items()]

    def _append(self, platform: str, trials: list[Trial]) -> Path:
        path = (
            self.root / f"platform={platform}" / f"{file_stem([trial.trial_id for trial in trials])}.parquet"
        )
        table = schema.to_table(trials)
        with files.reached(path, "cannot be written ({}); nothing was added"):
            if not self._is_there(path):
                make_folder(path.parent)
                self._put(table, path)
        return path

    def _is_there(self, path: Path) -> bool:
        """Whether these trials are stored already; a damaged file in their place is moved out of the way."""
        if not path.exists():
            return False
        try:
            files.read(path)
        except files.UnreadableFile as error:
            from pretune.datasets.upkeep import move_aside

            if not error.newer:
                move_aside(self, path, error.reason)
            return error.newer
        return True

    def put(self, table: pa.Table, path: Path) -> None:
        """Write one file whole. Raises :class:`StoreError`; then nothing has changed."""
        with files.reached(path, "cannot be written ({}); nothing was added"):
            self._put(table, path)

    def _put(self, table: pa.Table, path: Path) -> None:
        with whole_file(path) as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)

    # -- reading ------------------------------------------------------------------
    def files(self) -> list[Path]:
        """The Parquet files that count, in order of their names: not those that a merged one replaces."""
        with files.reached(self.root, "cannot be listed ({})"):
            found = sorted(self.root.glob("platform=*/*.parquet"))
        replaced = {path.parent / name for path in found for name in files.replaced_by(path)}
        return [path for path in found if path not in replaced]

    def scan(self, places: bool = False) -> pl.LazyFrame:
        """All trials, lazily, in the core columns and the union of the open ones.

        ``places`` adds :data:`FILE` and :data:`FILE_ROW`. Files of other tools, and those behind a URL, are
        read at once. Damage within a file that begins and ends well shows when the frame is collected:
        :meth:`query` goes on without that file.
        """
        return self._scan(self._readable(), places)

    def query(self, ask: Callable[[pl.LazyFrame], pl.LazyFrame], places: bool = False) -> pl.DataFrame:
        """What ``ask`` makes of the scan, collected, without files that are damaged inside."""
        asked = ask(self.scan(places))
        try:
            return asked.collect()
        except BaseException as error:  # a decoder may also panic
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
        # the decoder of trials() tells which file it is; a question that has no answer fails again
        return ask(self._scan(self._readable(), places, lazily=False)).collect()

    def frame(self, places: bool = False) -> pl.DataFrame:
        """All trials in memory, ordered by the time they began; ``places`` as in :meth:`scan`."""
        return self.query(lambda trials: trials.sort("created_at", "trial_id"), places)

    def trials(self) -> Iterator[Trial]:
        """All trials as objects, file by file; rows that are none cost a warning."""
        for path, table in self._tables(self.files()):
            for number, row in files.rows_of(table):
                try:
                    yield self.trial(path, number, row)
                except StoreError as error:
                    _warn(error)

    def __contains__(self, trial_id: str) -> bool:
        paths = self.files()
        if any(path.stem == trial_id for path in paths):
            return True
        several = [path for path in paths if MANY.fullmatch(path.stem)]
        return any(trial_id in table["trial_id"].to_pylist() for _, table in self._tables(several))

    def __len__(self) -> int:
        return self.query(lambda trials: trials.select("trial_id")).height

    def validate(self) -> list[Fault]:
        """What is no trial: unreadable files, rows that are none or lie elsewhere, ids that repeat, and files
        where no reader looks.

        What a trial says that cannot be is found by :mod:`pretune.datasets.consistency`.
        """
        return faults_of(self)

    def trial(self, path: Path, number: int, row: dict[str, Any]) -> Trial:
        """The trial that a row of a file holds; raises :class:`StoreError` naming both when it is none."""
        try:
            return schema.unflatten(row)
        except ValidationError as error:
            raise StoreError(one_line(error, f"{path} row {number}")) from None

    def _tables(self, paths: list[Path]) -> Iterator[tuple[Path, pa.Table]]:
        for path in paths:
            try:
                yield path, files.read(path)
            except files.UnreadableFile as error:
                _warn(error)

    def _readable(self) -> list[Path]:
        """The files whose columns can be read."""
        found = []
        for path in self.files():
            try:
                files.columns(path)
                found.append(path)
            except files.UnreadableFile as error:
                _warn(error)
        return found

    def _scan(self, paths: list[Path], places: bool, lazily: bool = True) -> pl.LazyFrame:
        import polars as pl

        empty = pl.from_arrow(schema.core_schema().empty_table())
        assert isinstance(empty, pl.DataFrame)
        alike: dict[str, list[Path]] = defaultdict(list)  # one scan for all files of the same columns
        scans = []
        for path in paths:
            columns = files.columns(path)
            if lazily and is_local(path) and is_own(columns):
                alike[columns.remove_metadata().to_string()].append(path)
            else:
                scans += self._converted(path)
        scans += [
            pl.scan_parquet(same, hive_partitioning=False, include_file_paths=FILE) for same in alike.values()
        ]
        if places:
            scans = [scan.with_columns(pl.int_range(pl.len()).over(FILE).alias(FILE_ROW)) for scan in scans]
        else:
            scans = [scan.drop(FILE) for scan in scans]
        return pl.concat([empty.lazy(), *scans], how="diagonal_relaxed")

    def _converted(self, path: Path) -> list[pl.LazyFrame]:
        """The file's rows in the store's columns; nothing where they do not fit."""
        import polars as pl

        try:
            frame = pl.from_arrow(files.read(path))
        except files.UnreadableFile as error:
            _warn(error)
            return []
        assert isinstance(frame, pl.DataFrame)
        return [frame.lazy().with_columns(pl.lit(str(path)).alias(FILE))]


def file_stem(trial_ids: list[str]) -> str:
    """The name of the file that holds these trials, in whatever order."""
    if len(trial_ids) == 1:
        return trial_ids[0]
    return f"{len(trial_ids)}-{hashlib.sha256(chr(10).join(sorted(trial_ids)).encode()).hexdigest()[:16]}"


def shipped_history() -> TrialStore:
    """The trials that come with pretune; empty when none were installed."""
    return TrialStore(Path(__file__).parent / "history")


def _warn(error: StoreError) -> None:
    warnings.warn(f"{error}; left out (pretune history validate lists all)", StoreWarning, stacklevel=4)
