"""The performance tables of Megatron-Bridge's documentation (``performance-summary.md``, Markdown)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.lines import counts, numbered, positive
from pretune.datasets.importers.runlog import batch
from pretune.errors import InputError

_HEADING = re.compile(r"(#+) +(.*?)\s*$")
_RULE = re.compile(r"[\s|:-]+$")
# heading of a column -> column of the store, for counts; "n/a" states nothing
_COUNTS = {
    "#-GPUs": "platform.devices",
    "GBS": "workload.global_batch_sequences",
    "MBS": "knob.micro_batch",
    "Sequence Length": "workload.sequence_length",
    "TP": "knob.tp",
    "PP": "knob.pp",
    "CP": "knob.cp",
    "VP": "knob.vp",
    "EP": "knob.ep",
    "GA": "knob.accumulation",  # until 25.11
}
_SPEED, _FLOPS = "Tokens / sec / GPU", "Model TFLOP / sec / GPU"
_NEEDED = ("#-GPUs", "GBS", "Sequence Length", _SPEED)
# "Model" is a column and the system a heading until 26.02; the other way round since
_NAMES = {"Model": "model.name", "System": "platform.name"}
_PAIR = re.compile(r"(\S+)\s*\((\S+)\)$")


class MegatronBridgeTable(Importer):
    """A row is a run; one with figures of two precisions (``FP8-CS (FP8-MX)``) is two.

    A row whose cells are not as many as its headings cannot be read by position, and is set aside.
    """

    name: ClassVar[str] = "megatron-bridge"
    fills: ClassVar[tuple[str, ...]] = (
        *_COUNTS.values(),
        *_NAMES.values(),
        *("workload.precision", "workload.global_batch_tokens", "tokens_per_s_per_device", "knob.fsdp"),
        *("knob.precision_recipe", "counter.model_flops_per_s_per_device", "software.nemo", "status"),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        headings: dict[int, str] = {}
        columns: list[str] = []
        tables = 0
        for number, line in numbered(path):
            if match := _HEADING.match(line):
                level = len(match[1])
                headings = {depth: text for depth, text in headings.items() if depth < level}
                headings[level] = match[2]
            if not line.startswith("|"):
                columns = []
            elif not columns:
                columns = _cells(line)
                tables += all(name in columns for name in _NEEDED)
            elif not _RULE.match(line) and all(name in columns for name in _NEEDED):
                yield from self._row(path, number, columns, _cells(line), list(headings.values()))
        if not tables:
            raise InputError(f"{path}: has no table with the columns {', '.join(_NEEDED)}")

    def _row(
        self, path: Path, number: int, columns: list[str], cells: list[str], headings: list[str]
    ) -> Iterator[Run | SetAside]:
        if len(cells) != len(columns):
            reason = f"has {len(cells)} cells under {len(columns)} headings; mend the table"
            yield SetAside(str(path), number, reason)
            return
        row = dict(zip(columns, cells, strict=True))
        for which in range(2 if _PAIR.match(row[_SPEED]) else 1):
            values = _stated({name: _pick(cell, which) for name, cell in row.items()}, headings)
            if isinstance(values, str):
                yield SetAside(str(path), number, values)
                continue
            told = repr(sorted(values.items()))
            yield Run(number, f"{self.name}-{hashlib.sha256(told.encode()).hexdigest()[:20]}", values)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _pick(cell: str, which: int) -> str:
    """The figure itself, or the one in parentheses beside it."""
    match = _PAIR.match(cell)
    return match[which + 1] if match else cell


def _stated(row: dict[str, str], headings: list[str]) -> dict[str, Any] | str:
    """Columns of the store, or why the row says too little."""
    values = counts(_COUNTS, row)
    for name in _NEEDED[:-1]:
        if _COUNTS[name] not in values:
            return f"{name}: {row[name]!r} is no count; mend the table"
    speed = positive(row[_SPEED])
    if speed is None:
        return f"{_SPEED}: {row[_SPEED]!r} is no throughput; mend the table"
    values["tokens_per_s_per_device"] = speed
    values |= batch(values["workload.global_batch_sequences"], values["workload.sequence_length"])
    if (flops := positive(row.get(_FLOPS))) is not None:
        values["counter.model_flops_per_s_per_device"] = flops * 1e12
    if row.get("FSDP") in ("0", "1"):
        values["knob.fsdp"] = row["FSDP"] == "1"
    return {**values, **_precision(row.get("Precision", "")), **_named(row, headings), "status": "ok"}


def _precision(text: str) -> dict[str, str]:
    kinds = {"BF16": "bf16", "FP16": "fp16"}
    kind = "fp8" if text.upper().startswith(("FP8", "MXFP8")) else kinds.get(text.upper())
    named = {"knob.precision_recipe": text} if text else {}
    return named | ({"workload.precision": kind} if kind else {})


def _named(row: dict[str, str], headings: list[str]) -> dict[str, str]:
    """Model, system and container: from the row, else from the headings above it."""
    named = {column: row[name] for name, column in _NAMES.items() if row.get(name)}
    for heading in headings:
        kind, _, text = heading.partition(": ")
        if kind in _NAMES and text:
            named.setdefault(_NAMES[kind], text.strip())
        elif match := re.match(r"([\d.]+) NeMo Container", heading):
            named["software.nemo"] = match[1]
    return named
