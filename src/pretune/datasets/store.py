"""Where trials live: an append-only Parquet dataset with one folder per platform."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from pretune.datasets import schema
from pretune.datasets.durable import make_folder, whole_file
from pretune.datasets.spec import one_line
from pretune.datasets.trial import Trial
from pretune.errors import StoreError

if TYPE_CHECKING:
    import polars as pl

FILE, FILE_ROW = "store.file", "store.row"  # columns of a frame that say where its rows lie


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a store: the file, the row (None: the whole file), and the reason."""

    file: str
    row: int | None
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.row is None else f' row {self.row}'}: {self.reason}"

    def asdict(self) -> dict[str, Any]:
        """For JSON, with the same keys as a :class:`~pretune.datasets.consistency.Finding`."""
        more = {"field": None, "shown": None, "remedy": None, "warning": False}
        return {**vars(self), **more, "text": str(self)}


class TrialStore:
    """An append-only set of trials under ``root``, partitioned by platform.

    A file appears whole or not at all: it is written beside its place, synced, and
    renamed. Its name comes from the ids of the trials in it, so the same trials appended
    twice, or by two writers, are stored once.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

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
        return [self._write(name, group) for name, group in by_platform.items()]

    def _write(self, platform: str, trials: list[Trial]) -> Path:
        path = self.root / f"platform={platform}" / f"{_file_stem(trials)}.parquet"
        table = schema.to_table(trials)
        try:
            if not path.exists():
                make_folder(path.parent)
                self._put(table, path)
        except OSError as error:
            reason = error.strerror or " ".join(str(error).split())
            raise StoreError(f"{path}: cannot be written ({reason}); nothing was added") from None
        return path

    def _put(self, table: pa.Table, path: Path) -> None:
        with whole_file(path) as file:
            pq.write_table(table, file, compression="zstd")

    # -- reading ------------------------------------------------------------------
    def files(self) -> list[Path]:
        """The Parquet files, in order of their names."""
        return sorted(self.root.glob("platform=*/*.parquet"))

    def scan(self, places: bool = False) -> pl.LazyFrame:
        """All trials, lazily, in the core columns and the union of the open ones.

        ``places`` adds :data:`FILE` and :data:`FILE_ROW`. Raises :class:`StoreError` naming the first file
        that cannot be read.
        """
        import polars as pl

        empty = pl.from_arrow(schema.core_schema().empty_table())
        assert isinstance(empty, pl.DataFrame)
        alike: dict[str, list[Path]] = defaultdict(list)  # one scan for all files of the same columns
        for path in self.files():
            columns = self._metadata(path).schema.to_arrow_schema().remove_metadata()
            alike[columns.to_string()].append(path)
        file = FILE if places else None
        scans = [
            pl.scan_parquet(paths, hive_partitioning=False, include_file_paths=file)
            for paths in alike.values()
        ]
        if places:
            scans = [scan.with_columns(pl.int_range(pl.len()).over(FILE).alias(FILE_ROW)) for scan in scans]
        return pl.concat([empty.lazy(), *scans], how="diagonal_relaxed")

    def frame(self, places: bool = False) -> pl.DataFrame:
        """All trials in memory, ordered by the time they began; ``places`` as in :meth:`scan`."""
        return self.scan(places).collect().sort("created_at", "trial_id")

    def trials(self) -> Iterator[Trial]:
        """All trials as objects, file by file. Raises :class:`StoreError` at the first fault."""
        for path in self.files():
            for number, row in enumerate(self._read(path).to_pylist()):
                yield self._trial(path, number, row)

    def __len__(self) -> int:
        return sum(self._metadata(path).num_rows for path in self.files())

    def validate(self) -> list[Fault]:
        """What is no trial: unreadable files, rows that are none or lie elsewhere, ids that repeat.

        What a trial says that cannot be is found by :mod:`pretune.datasets.consistency`.
        """
        faults: list[Fault] = []
        seen: dict[str, Path] = {}
        for path in self.files():
            try:
                rows = self._read(path).to_pylist()
            except StoreError as error:
                faults.append(Fault(str(path), None, str(error).removeprefix(f"{path}: ")))
                continue
            for number, row in enumerate(rows):
                reason = self._wrong(path, number, row, seen)
                if reason:
                    faults.append(Fault(str(path), number, reason))
        return faults

    def _wrong(self, path: Path, number: int, row: dict, seen: dict[str, Path]) -> str | None:
        """What is wrong with one row; notes its id in ``seen``."""
        try:
            trial = self._trial(path, number, row)
        except StoreError as error:
            return str(error).split(": ", 1)[1]
        if trial.trial_id in seen:
            return f"trial_id {trial.trial_id} is already in {seen[trial.trial_id]}"
        seen[trial.trial_id] = path
        if path.parent.name != f"platform={trial.platform.name}":
            return f"its platform is {trial.platform.name}, which is another folder"
        return None

    def _trial(self, path: Path, number: int, row: dict) -> Trial:
        try:
            return schema.unflatten(row)
        except ValidationError as error:
            raise StoreError(one_line(error, f"{path} row {number}")) from None

    def _metadata(self, path: Path) -> pq.FileMetaData:
        """The footer; raises :class:`StoreError` when this pretune cannot read the file as trials."""
        try:
            metadata = pq.read_metadata(path)
            found = metadata.schema.to_arrow_schema()
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise StoreError(f"{path}: is truncated or no Parquet file ({reason}); move it aside") from None
        problem = schema.mismatch(found)
        if problem:
            raise StoreError(f"{path}: {problem}")
        return metadata

    def _read(self, path: Path) -> pa.Table:
        self._metadata(path)
        try:
            return pq.ParquetFile(path).read(use_threads=False)  # most files hold few rows
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None


def shipped_history() -> TrialStore:
    """The trials that come with pretune; empty when none were installed."""
    return TrialStore(Path(__file__).parent / "history")


def _file_stem(trials: list[Trial]) -> str:
    if len(trials) == 1:
        return trials[0].trial_id
    ids = "\n".join(sorted(trial.trial_id for trial in trials))
    return f"{len(trials)}-{hashlib.sha256(ids.encode()).hexdigest()[:16]}"
