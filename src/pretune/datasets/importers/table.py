"""Any CSV or Parquet table: one row, one run, by a mapping file; one header is known without."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.files import ROWS_AT_ONCE
from pretune.datasets.importers.base import Importer, Run, SetAside, digest
from pretune.datasets.importers.complete import MEASURED
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.opened import opened_text
from pretune.datasets.trial import Status
from pretune.errors import InputError

# the header of collected published measurements; their peak memory has no one unit, and is not taken
_SAME = ("dp", "tp", "pp", "vp", "cp", "ep", "zero_stage", "sequence_parallel", "activation_checkpointing")
PUBLISHED = Mapping(
    columns={
        "source": "source_id",
        "framework": "framework",
        "software.framework": "framework_version",
        "accelerator.name": "accelerator",
        "platform.devices": "accelerators_total",
        "platform.devices_per_node": "accelerators_per_node",
        "model.name": "model_name",
        "model.layers": "n_layers",
        "model.hidden_size": "hidden_size",
        "model.heads": "n_heads",
        "model.kv_heads": "n_kv_heads",
        "model.ffn_size": "ffn_hidden_size",
        "model.vocabulary": "vocab_size",
        "model.experts": "n_experts",
        "model.experts_per_token": "experts_topk",
        "workload.sequence_length": "seq_len",
        "workload.global_batch_sequences": "global_batch_sequences",
        "workload.precision": "precision",
        "knob.micro_batch": "micro_batch_sequences",
        "knob.accumulation": "grad_accum",
        "knob.attention": "attention_impl",
        "knob.compile": "compile",
        "knob.sharding": "sharding",
        **{f"knob.{name}": name for name in _SAME},
        "tokens_per_s": "tokens_per_s_total",
        "tokens_per_s_per_device": "tokens_per_s_per_accelerator",
        "step_time_s": "step_time_s",
        "status": "status",
    },
    status={"failed": Status.CRASH},
    key=["source_id", "row_id"],
)


# a figure that is cut is a wrong one
UNFINISHED = "has no line end, so that it may be cut; end the file with a line break if it is whole"


class Table(Importer):
    """``mapping`` says what the columns are; without one the table has the header of :data:`PUBLISHED`."""

    name: ClassVar[str] = "csv"
    reads: ClassVar[str] = "any CSV or Parquet table, by a mapping that names its columns"
    fills: ClassVar[tuple[str, ...]] = ("whatever its mapping names",)
    pattern: ClassVar[str] = "*.[cp][sa][vr]*"  # .csv and .parquet
    maps = True

    def __init__(self, mapping: Mapping | None = None) -> None:
        self.mapping = mapping

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        header = _header(path)
        if isinstance(header, SetAside):
            yield header
            return
        if not header:
            return  # nothing is written yet
        mapping = self._for(header, path)
        seen: Counter[str] = Counter()
        for line, row in _rows(path):
            if isinstance(row, SetAside):
                yield row
                continue
            told = {name: row.get(name) for name in mapping.key or sorted(map(str, row))}
            key = digest(json.dumps(told, default=str), 64)
            seen[key] += 1  # a row that is there twice was measured twice
            try:
                values = mapping.read(row)
                if mapping is PUBLISHED:
                    _published(values)
                yield Run(line, f"{key}#{seen[key]}", values)
            except ValueError as error:
                yield SetAside(str(path), line, str(error))

    def _for(self, header: list[str], path: Path) -> Mapping:
        chosen = self.mapping or PUBLISHED
        lacking = sorted(set(chosen.columns.values()) - set(header))
        if self.mapping is None and lacking:
            raise InputError(
                f"{path}: has an unknown header (no column {lacking[0]}); name its columns in --map"
            )
        if lacking:
            raise InputError(
                f"{path}: has no column {lacking[0]!r}, which --map names; its columns: {', '.join(header)}"
            )
        return chosen


def _published(values: dict[str, Any]) -> None:
    """What is known of :data:`PUBLISHED` beyond its header; raises ValueError for a row that is no trial."""
    if values.get("model.experts"):
        values.pop("model.ffn_size", None)  # it is that of dense layers, and of no expert
    if values.get("status") == Status.OK and not any(values.get(name) for name in MEASURED):
        raise ValueError("ran, but states neither tokens/s nor a step time; nothing says how fast")


def _header(path: Path) -> list[str] | SetAside:
    """The table's columns; empty of an empty file."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: is truncated or no Parquet file ({_said(error)})") from None
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            lines = _Lines(file)
            names = next(csv.reader(lines), [])
            return names if lines.whole else SetAside(str(path), 1, f"its header {UNFINISHED}")
    except (OSError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV ({_said(error)}); check the file") from None


def _said(error: Exception) -> str:
    return " ".join(str(error).split())


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | SetAside]]:
    """Line (of a Parquet file, row) number and row; what is no row is set aside."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    with opened_text(path, "utf-8-sig", newline="") as file:
        text = _Lines(file)
        lines = csv.DictReader(text, strict=True)
        while True:
            try:
                row = next(lines)
            except StopIteration:
                return
            except csv.Error as error:  # a NUL byte, a field without end
                why = f"is no line of a CSV file ({error})"
            else:
                short = None in row.values()
                why = f"has {'fewer' if short else 'more'} fields than the header"
                why = why if short or None in row else ""
            if not text.whole:
                why = f"its last line {UNFINISHED}"
            yield lines.line_num, SetAside(str(path), lines.line_num, why) if why else row


class _Lines:
    """Lines of a text, and whether the last one that was given is ``whole``, as its end says."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.whole = True

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.whole = line.endswith(("\n", "\r"))
        return line


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(path).iter_batches(batch_size=ROWS_AT_ONCE)
        yield from enumerate(row for batch in batches for row in batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: is truncated or no Parquet file ({_said(error)})") from None
