"""Exports of Weights & Biases: tables of runs, histories of one run, and the files of an offline run."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers import aliases
from pretune.datasets.importers.base import Importer, Run, SetAside, digest
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.opened import opened_text
from pretune.datasets.importers.tracked import Stated, ended, flat, is_measure, stated, steady
from pretune.datasets.trial import Status
from pretune.errors import InputError

SUMMARY, CONFIG, METADATA = "wandb-summary.json", "config.yaml", "wandb-metadata.json"
KEPT = 10_000  # readings of a speed in a history; later ones are not looked at
FAILED, RUNNING = ("crashed", "failed", "killed", "preempted"), ("running", "pending", "preempting")
# columns of a table of runs that are of the run, and no setting or metric
_OF_RUN = {
    "",
    "id",
    "name",
    "state",
    "notes",
    "user",
    "tags",
    "created",
    "runtime",
    "sweep",
    "group",
    "end time",
}
_NAN = re.compile(r"(?<=[:,\[] )-?(?:nan|inf)\b")  # which Python prints, and does not read
_STEP = ("_step", "_timestamp", "_runtime")


class WandbExport(Importer):
    """A CSV of runs (of the web page, or a data frame with ``summary``, ``config`` and ``name`` as the API's
    example makes it); a history as CSV, JSON (a list, or an object a line) or Parquet; or the
    ``wandb-summary.json`` of a run's ``files`` folder, with the config and metadata beside it.

    In a history, a speed is the median of its readings after the first two. The state of a run is believed;
    where an export has none, a note says so. Only a table of the web page says which run is which for ever:
    of others the key is the run's name and what stays the same while it grows.
    """

    name: ClassVar[str] = "wandb"
    reads: ClassVar[str] = "W&B's exports: a table of runs, a history, a run's folder"
    pattern: ClassVar[str] = SUMMARY
    fills: ClassVar[tuple[str, ...]] = (
        *aliases.FILLS,
        *("status", "cause", "created_at", "accelerator.name", "software.python", "counter.*"),
    )
    maps: ClassVar[bool] = True

    def __init__(self, names: Mapping | None = None) -> None:
        self.names = names

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        if path.name == SUMMARY:
            yield self._offline(path)
        elif path.suffix == ".csv":
            yield from self._csv(path)
        elif path.suffix in (".json", ".jsonl"):
            yield from self._history(path, _json_rows(path))
        elif path.suffix == ".parquet":
            yield from self._history(path, _parquet_rows(path))
        else:
            raise InputError(f"{path}: is no export of W&B; give a .csv, .json, .parquet or {SUMMARY}")

    def _csv(self, path: Path) -> Iterator[Run | SetAside]:
        rows = _csv_rows(path)
        first = next(rows, None)
        if first is None:
            return  # nothing is written yet
        header = first[1]
        if isinstance(header, SetAside):
            yield header
        elif "_step" in header or "_timestamp" in header:
            yield from self._history(path, ((line, _named(header, row, path, line)) for line, row in rows))
        elif {"Name", "name", "State"} & set(header):
            for line, row in rows:
                yield self._row(path, line, _named(header, row, path, line))
        else:
            raise InputError(f"{path}: has no Name and no _step column; give a table of runs, or a history")

    def _row(self, path: Path, line: int, row: dict[str, Any] | SetAside) -> Run | SetAside:
        if isinstance(row, SetAside):
            return row
        told, settings, metrics = {name.lower(): value for name, value in row.items()}, {}, {}
        if "summary" in row and "config" in row:  # the API's example: dicts as Python prints them
            both = [_literal(row["summary"]), _literal(row["config"])]
            if None in both:
                return SetAside(str(path), line, "its summary or config is no dict; export the table again")
            metrics, settings = flat(both[0] or {}), flat(both[1] or {})
        else:
            settings = {name: value for name, value in row.items() if name.strip().lower() not in _OF_RUN}
        found = _stated({**settings, **metrics}, self.names)
        logged = bool({n for n in metrics if not n.startswith("_")}) if metrics else found.measured
        key = told.get("id") or json.dumps([told.get("name"), told.get("created"), told.get("user")])
        if not told.get("id") and not told.get("created"):
            key = _digest([told.get("name"), settings])
        found.values |= _created(told.get("created"))
        return self._ended(path, line, f"wandb-{key}", found, told.get("state"), logged or bool(found.unread))

    def _history(self, path: Path, rows: Iterable[tuple[int, Any]]) -> Iterator[Run | SetAside]:
        """One run from its history; its key is its first row, which stays while it grows."""
        begun: tuple[int, str] | None = None
        last: dict[str, Any] = {}
        speeds: dict[str, list[float]] = {}
        for line, row in rows:
            if isinstance(row, SetAside):
                yield row
                continue
            begun = begun or (line, _digest({name: row.get(name) for name in _STEP}))
            told = {name: value for name, value in flat(row).items() if _given(value)}
            last |= told
            for name in filter(lambda name: is_measure(name, self.names), told):
                readings = speeds.setdefault(name, [])
                if len(readings) < KEPT and (number := _number(told[name])) is not None:
                    readings.append(number)
        if begun is not None:
            last |= {name: steady(readings) for name, readings in speeds.items() if readings}
            found = _stated(last, self.names)
            logged = any(not name.startswith("_") for name in last)
            yield self._ended(path, begun[0], f"wandb-{begun[1]}", found, None, logged)

    def _offline(self, path: Path) -> Run | SetAside:
        """A run's folder ``run-DATE_TIME-ID/files``."""
        summary = _object(path)
        if summary is None:
            return SetAside(str(path), None, "is no whole JSON object (cut off?); copy it again")
        metadata = _object(path.with_name(METADATA)) or {}
        found = _stated({**flat(_config(path.with_name(CONFIG))), **flat(summary)}, self.names)
        found.values |= _machine(metadata)
        folder = path.parent.parent.name if path.parent.name == "files" else path.parent.name
        named = re.search(r"run-\d{8}_\d{6}-(\w+)$", folder)
        key = named[1] if named else _digest([metadata.get("startedAt"), metadata.get("args"), folder])
        logged = any(not name.startswith("_") for name in summary)
        return self._ended(path, None, f"wandb-{key}", found, metadata.get("state"), logged)

    def _ended(
        self, path: Path, line: int | None, key: str, found: Stated, state: Any, logged: bool
    ) -> Run | SetAside:
        word = str(state or "").lower()
        # offline, older versions write "running" once and for all
        if word in RUNNING and path.name != SUMMARY:
            return SetAside(str(path), line, f"is {word}; export it when it has ended")
        said = f"W&B says {word}" if word in (*FAILED, "finished") else "the export does not say how it ended"
        end = ended(found, Status.CRASH if word in FAILED else Status.OK, said, logged)
        if isinstance(end, str):
            return SetAside(str(path), line, end)
        odd = [*found.odd, *([said] if said.startswith("the export") else [])]
        where = "" if line is None else f"line {line}: "
        return Run(line, key, found.values | end, [f"{where}{each}" for each in odd])


def _stated(told: dict[str, Any], names: Mapping | None) -> Stated:
    """Of the run, what it took: Trainer's word goes before W&B's, in which start and end are too."""
    if any(name.endswith("train_runtime") for name in told):
        told = {name: value for name, value in told.items() if name != "_runtime"}
    return stated(told, names)


def _machine(metadata: dict[str, Any]) -> dict[str, Any]:
    """The accelerator, how many the machine has, and when the run began."""
    values = _created(metadata.get("startedAt"))
    cards = metadata.get("gpu_nvidia")
    card = cards[0].get("name") if isinstance(cards, list) and cards and isinstance(cards[0], dict) else None
    kind, count = metadata.get("gpu") or card, metadata.get("gpu_count")
    if isinstance(kind, str):
        values["accelerator.name"] = kind
        if isinstance(count, int) and count > 0:
            values["platform.devices_per_node"] = count
    if isinstance(metadata.get("python"), str):
        values["software.python"] = metadata["python"]
    return values


def _created(told: Any) -> dict[str, Any]:
    try:
        at = datetime.fromisoformat(str(told))
    except ValueError:
        return {}
    return {"created_at": at if at.tzinfo else at.replace(tzinfo=UTC)}


def _config(path: Path) -> dict[str, Any]:
    """``key: {value: ...}`` of a run's config.yaml, without W&B's own keys; {} where it is cut or missing."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        told = yaml.safe_load("".join(_whole_lines(text.splitlines(keepends=True))))  # a cut figure is wrong
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    entries = told.items() if isinstance(told, dict) else ()
    return {
        str(name): entry["value"]
        for name, entry in entries
        if isinstance(entry, dict) and "value" in entry and name != "_wandb"
    }


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str] | SetAside]]:
    """Rows with the lines they end in; the last is left out while it has no line end."""
    try:
        with opened_text(path, "utf-8-sig", newline="") as file:
            text = _whole_lines(file)
            reader = csv.reader(text)
            while True:
                try:
                    row = next(reader, None)
                except csv.Error as error:
                    yield (
                        reader.line_num,
                        SetAside(str(path), reader.line_num, f"is no row of a CSV ({error})"),
                    )
                    continue
                if row is None:
                    return
                yield reader.line_num, row
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); give an export") from None


def _whole_lines(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if line.endswith("\n"))


def _named(header: list[str], row: list[str] | SetAside, path: Path, line: int) -> dict[str, Any] | SetAside:
    if isinstance(row, SetAside):
        return row
    if len(row) != len(header):
        reason = f"has {len(row)} fields, its header {len(header)} (cut off?); export it again"
        return SetAside(str(path), line, reason)
    return dict(zip(header, row, strict=True))


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | SetAside]]:
    """The rows of a list, or of an object a line; what is cut off is set aside."""
    try:
        with opened_text(path) as file:
            head = file.read(4096).lstrip()[:1]
            file.seek(0)
            if head == "[":
                for number, row in enumerate(json.load(file), 1):
                    yield number, row if isinstance(row, dict) else SetAside(str(path), number, "is no row")
                return
            for number, line in enumerate(file, 1):
                row = _parsed(line) if line.strip() else {}
                if row is None:
                    yield number, SetAside(str(path), number, "is no JSON object; export it again")
                elif row:
                    yield number, row
    except (ValueError, RecursionError):
        yield 1, SetAside(str(path), None, "is no whole JSON (cut off?); export it again")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); give an export") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | SetAside]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1000):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        yield number, SetAside(str(path), None, f"is no whole Parquet file ({reason}); export it again")


def _literal(text: str) -> dict[Any, Any] | None:
    """A dict as Python or JSON prints it; None when it is none."""
    for read in (json.loads, lambda told: ast.literal_eval(_NAN.sub("None", told))):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        return value if isinstance(value, dict) else None
    return None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _object(path: Path) -> dict[str, Any] | None:
    try:
        return _parsed(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _given(value: Any) -> bool:
    return value is not None and str(value).strip() != ""


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number < 1e18 else None


def _digest(told: Any) -> str:
    return digest(json.dumps(told, sort_keys=True, default=str))
