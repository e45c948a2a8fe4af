"""Kernel Tuner's cache files, and its result files in the T4 format: tuning tables of GPU kernels."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretune.datasets.importers.base import Importer, Run, SetAside, digest
from pretune.datasets.importers.json_stream import Entry, entries
from pretune.datasets.trial import Status

if TYPE_CHECKING:
    from pretune.datasets.importers.account import Account, Watcher
    from pretune.datasets.importers.complete import Given
    from pretune.datasets.tuning_table import TuningTables

_MS = 1e-3  # the unit of every time in its files
_COSTS = {"compile_time": "compile_s", "benchmark_time": "benchmark_s"}
_OVERHEADS = {"verification_time", "strategy_time", "framework_time"}  # the tuner's own
_NOT_COUNTERS = {"time", "times", "timestamp", *_OVERHEADS, *_COSTS}
_NEVER = 1e19  # older versions recorded 1e20 for what did not run
# its words for what went wrong, of both formats, by how they begin
_FAILURES = {
    "invalid": (Status.INVALID, "the device or a restriction refuses the configuration"),
    "constraints": (Status.INVALID, "the device or a restriction refuses the configuration"),
    "compil": (Status.CRASH, "the compiler refused it"),
    "runtime": (Status.CRASH, "it failed when it ran"),
    "correctness": (Status.CRASH, "its result was wrong"),
    "timeout": (Status.TIMEOUT, "it did not end in time"),
}


class KernelTuner(Importer):
    """A configuration is a run. A cache names its device and kernel; of a T4 file the name is the kernel's.

    A cache that was not closed, as every one in use, has the configurations that it has so far.
    """

    name: ClassVar[str] = "kernel-tuner"
    reads: ClassVar[str] = "Kernel Tuner's caches and T4 files: tuning tables, and no trials"
    fills: ClassVar[tuple[str, ...]] = (
        *("kernel", "problem", "accelerator.name", "status", "cause", "time_s", *_COSTS.values()),
        *("knob.*", "counter.*"),
    )
    pattern: ClassVar[str] = "*.json"

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        for entry in entries(path, {"cache": "{", "results": "["}):
            if not isinstance(entry, Entry):
                yield entry
                continue
            told = entry.header
            kernel = str(told.get("kernel_name") or path.name.split(".")[0])
            values = _cached(entry) if entry.name is not None else _t4(entry.value)
            if isinstance(values, str):
                yield SetAside(str(path), entry.line, values)
                continue
            problem = told.get("problem_size")
            values |= {"kernel": kernel, "problem": None if problem is None else json.dumps(problem)}
            if told.get("device_name"):
                values["accelerator.name"] = str(told["device_name"])
            knobs = sorted(item for item in values.items() if item[0].startswith("knob."))
            key = repr((values.get("accelerator.name"), kernel, values["problem"], knobs))
            yield Run(entry.line, key, values)


def _cached(entry: Entry) -> dict[str, Any] | str:
    """Of a cache's entry: its knobs by the names that the header gives, its counters, its time."""
    row, names = entry.value, entry.header.get("tune_params_keys")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return "is no configuration of a cache; its header has no tune_params_keys"
    lacking = [name for name in names if name not in row]
    if lacking:
        return f"has no value for {lacking[0]}, which tune_params_keys names"
    word = str(row.get("__error__") or (row.get("time") if isinstance(row.get("time"), str) else ""))
    return _values({name: row[name] for name in names}, row, set(names), word)


def _t4(result: Any) -> dict[str, Any] | str:
    """Of a T4 file's result, whose measurements are a list of names and values."""
    if not isinstance(result, dict) or not isinstance(result.get("configuration"), dict):
        return "is no result of a T4 file; it has no configuration"
    measured = result.get("measurements")
    row = {
        each["name"]: each.get("value")
        for each in (measured if isinstance(measured, list) else [])
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    times = result.get("times")
    if isinstance(times, dict):
        row |= {"times": times.get("runtimes"), "compile_time": times.get("compilation_time")}
        row["compile_time"] = row["compile_time"] or times.get("compilation")
        row["benchmark_time"] = times.get("benchmark")
    word = str(result.get("invalidity") or "")
    return _values(result["configuration"], row, set(), "" if word == "correct" else word)


def _values(
    knobs: dict[str, Any], row: dict[str, Any], names: set[str], failure: str
) -> dict[str, Any] | str:
    values = {f"knob.{name}": _plain(value) for name, value in knobs.items()}
    for name, column in _COSTS.items():
        if (cost := _number(row.get(name))) is not None:
            values[column] = cost * _MS
    time = _number(row.get("time"))
    if failure or time is None or time >= _NEVER:
        if not failure and "time" not in row:
            return "states no time; only tables of times can be imported"
        status, cause = next(
            (told for word, told in _FAILURES.items() if failure.casefold().startswith(word)),
            (Status.CRASH, f"no time was measured ({failure or row['time']})"),
        )
        return values | {"status": str(status), "cause": cause}
    if problem := _lies(time, row.get("times")):
        return problem
    counters = {
        f"counter.{name}": number
        for name, value in row.items()
        if name not in _NOT_COUNTERS | names and (number := _number(value)) is not None
    }
    return values | counters | {"status": str(Status.OK), "time_s": time * _MS}


def _lies(time: float, times: Any) -> str | None:
    """A time that no mean, median or minimum of the single launches can be is in another unit."""
    single = [_number(each) for each in times] if isinstance(times, list) else []
    figures = [each for each in single if each]
    if time <= 0:
        return f"time {time:g} is no duration"
    if not figures or 0.99 * min(figures) <= time <= 1.01 * max(figures):
        return None
    span = f"{min(figures):g} to {max(figures):g}"
    return f"time {time:g} lies outside its own times ({span}); correct one of them"


def _number(value: Any) -> float | None:
    """A finite number; truths and words are none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def _plain(value: Any) -> bool | int | float | str | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return float(value) if abs(value) < 1e300 else str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)


def import_tables(
    importer: KernelTuner,
    paths: Iterable[Path | str],
    given: Given,
    tables: TuningTables,
    watcher: Watcher | None = None,
) -> Account:
    """What :func:`~pretune.datasets.importers.account.import_files` does for trials, for tuning tables.

    ``given`` names the platform of files that do not. Raises as that does.
    """
    from pretune.datasets.importers.account import accounted

    def made(run: Run, source: Path) -> tuple[str, dict[str, Any]] | SetAside:
        row = _row(run, source, given)
        return row if isinstance(row, SetAside) else (row["row_id"], row)

    return accounted(importer, paths, made, tables.ids(), tables.append, watcher)


def _row(run: Run, path: Path, given: Given) -> dict[str, Any] | SetAside:
    """A run as a row of the tables, on the platform that it or the user names."""
    device = run.values.get("accelerator.name")
    if given.platform is not None:
        platform, named = given.platform.name, given.platform.accelerator.name
        if device not in (None, named):
            reason = f"ran on {device}, and --platform says {named}; leave --platform out"
            return SetAside(str(path), run.line, reason)
    elif device is None:
        return SetAside(str(path), run.line, "does not name its device; give --platform")
    else:
        named, platform = device, re.sub(r"[^A-Za-z0-9.]+", "-", device).strip("-.") or "device"
    key = digest(f"{platform} {run.key}")
    origin = {"row_id": f"kernel-tuner-{key}", "source": "kernel-tuner"}
    return {**run.values, **origin, "accelerator.name": named, "platform.name": platform}
