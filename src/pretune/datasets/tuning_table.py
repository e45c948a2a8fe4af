"""Tuning tables: any knobs of any kernel and the time it took, kept beside the trials of a store.

A row has ``row_id``, ``kernel``, ``problem`` (its size, as the source writes it), ``platform.name``,
``accelerator.name``, ``source``, ``status`` (:class:`~pretune.datasets.trial.Status`), ``cause``, ``time_s``
(seconds per launch; null unless ok), what the trial cost (``compile_s``, ``benchmark_s``), and the open
columns ``knob.*`` and ``counter.*``.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.datasets.durable import location, make_folder, whole_file
from pretune.errors import StoreError

if TYPE_CHECKING:
    import polars as pl

FIELDS = (
    *("row_id", "kernel", "problem", "platform.name", "accelerator.name"),
    *("source", "status", "cause", "time_s"),
)
COSTS = ("compile_s", "benchmark_s")
SPEED = "tokens_per_s_per_device"  # what surrogates learn; one launch of a kernel is its token


class TuningTables:
    """An append-only set of rows under ``<store>/tables``; a file appears whole or not at all.

    Its name comes from the ids of its rows, so what is appended twice is stored once.
    """

    def __init__(self, store: str | Path) -> None:
        self.root = location(store) / "tables"

    def append(self, rows: Sequence[dict[str, Any]]) -> list[Path]:
        """Write the rows, one file per kernel and platform; returns the files. Durable on return.

        Raises :class:`StoreError` when a file cannot be written.
        """
        groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            groups[row["kernel"], row["platform.name"]].append(row)
        return [self._write(group) for group in groups.values()]

    def _write(self, rows: list[dict[str, Any]]) -> Path:
        ids = "\n".join(sorted(row["row_id"] for row in rows))
        path = self.root / f"{len(rows)}-{hashlib.sha256(ids.encode()).hexdigest()[:16]}.parquet"
        try:
            if not path.exists():
                make_folder(path.parent)
                with whole_file(path) as file:
                    _frame(rows).write_parquet(file)
        except OSError as error:
            reason = error.strerror or " ".join(str(error).split())
            raise StoreError(f"{path}: cannot be written ({reason}); nothing was added") from None
        return path

    def ids(self) -> set[str]:
        """The ``row_id`` of every row."""
        return {row_id for frame in self._frames(["row_id"]) for row_id in frame["row_id"].to_list()}

    def frame(self, kernel: str | None = None) -> pl.DataFrame:
        """All rows, or those of one kernel, with :data:`SPEED`, as
        ``TransferSurrogate(target, NoPhysics())`` learns from them.

        Raises :class:`StoreError` naming the first file that cannot be read.
        """
        import polars as pl

        found = pl.concat([_frame([]), *self._frames()], how="diagonal_relaxed")
        if kernel is not None:
            found = found.filter(pl.col("kernel") == kernel)
        kept = [column.name for column in found if column.name in FIELDS or column.null_count() < len(found)]
        return found.select(kept).with_columns((1 / pl.col("time_s")).alias(SPEED))

    def _frames(self, columns: list[str] | None = None) -> Iterator[pl.DataFrame]:
        import polars as pl

        for path in sorted(self.root.glob("*.parquet")):
            try:
                yield pl.read_parquet(path.read_bytes(), columns=columns)
            except (pl.exceptions.PolarsError, OSError) as error:
                reason = " ".join(str(error).split())
                raise StoreError(f"{path}: is no tuning table ({reason}); move it aside") from None


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The rows in their columns; a knob that has numbers and words is one of words."""
    import polars as pl

    schema: dict[str, Any] = dict.fromkeys(FIELDS, pl.String)
    schema |= dict.fromkeys(("time_s", *COSTS), pl.Float64)
    for name in sorted({name for row in rows for name in row} - schema.keys()):
        kinds = {type(row[name]) for row in rows if row.get(name) is not None}
        schema[name] = pl.Float64 if name.startswith("counter.") else _type(kinds)
    data = {
        name: [
            None if row.get(name) is None else str(row[name]) if kind == pl.String else row[name]
            for row in rows
        ]
        for name, kind in schema.items()
    }
    return pl.DataFrame(data, schema=schema, strict=False)


def _type(kinds: set[type]) -> Any:
    import polars as pl

    if kinds <= {bool}:
        return pl.Boolean
    if kinds <= {int}:
        return pl.Int64
    return pl.Float64 if kinds <= {int, float} else pl.String
