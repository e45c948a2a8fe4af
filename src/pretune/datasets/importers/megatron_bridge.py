"""The performance tables of Megatron-Bridge's documentation (``performance-summary.md``, Markdown)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers.base import Importer, Run, SetAside, digest
from pretune.datasets.importers.lines import counts, positive
from pretune.datasets.importers.markdown import rows
from pretune.datasets.importers.runlog import batch

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
_NAMES = {"Model": "model.name", "System": "accelerator.name"}
_PAIR = re.compile(r"(\S+)\s*\((\S+)\)$")


class MegatronBridgeTable(Importer):
    """A row is a run; one with figures of two precisions (``FP8-CS (FP8-MX)``) is two.

    A row whose cells are not as many as its headings cannot be read by position, and is set aside.
    """

    name: ClassVar[str] = "megatron-bridge"
    reads: ClassVar[str] = "the tables of Megatron-Bridge's performance summary"
    fills: ClassVar[tuple[str, ...]] = (
        *_COUNTS.values(),
        *_NAMES.values(),
        *("workload.precision", "workload.global_batch_tokens", "tokens_per_s_per_device", "knob.fsdp"),
        *("knob.precision_recipe", "counter.model_flops_per_s_per_device", "software.nemo", "status"),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        for row in rows(path, _NEEDED):
            if isinstance(row, SetAside):
                yield row
                continue
            for which in range(2 if _PAIR.match(row.cells[_SPEED]) else 1):
                cells = {name: _pick(cell, which) for name, cell in row.cells.items()}
                values = _stated(cells, row.headings)
                if isinstance(values, str):
                    yield SetAside(str(path), row.line, values)
                    continue
                told = repr(sorted(values.items()))
                yield Run(row.line, f"{self.name}-{digest(told)}", values)


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
    """Model, accelerator and container: from the row, else from the headings above it."""
    named = {column: row[name] for name, column in _NAMES.items() if row.get(name)}
    for heading in headings:
        kind, _, text = heading.partition(": ")
        if kind in _NAMES and text:
            named.setdefault(_NAMES[kind], text.strip())
        elif match := re.match(r"([\d.]+) NeMo Container", heading):
            named["software.nemo"] = match[1]
    if system := named.get("accelerator.name"):  # a DGX of any number of nodes is no platform yet
        named["accelerator.name"] = system.removeprefix("DGX-")
    return named
