"""The benchmark tables of MosaicML's LLM Foundry (``scripts/train/benchmarking``, Markdown)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers.base import Importer, Run, SetAside, digest
from pretune.datasets.importers.lines import positive, whole
from pretune.datasets.importers.markdown import Row, rows
from pretune.datasets.workload import ModelSpec

_COUNTS = {
    "# GPUs": "platform.devices",
    "SeqLen (T)": "workload.sequence_length",
    "GlobalBatchSize": "workload.global_batch_sequences",
    "GlobalBatchSize (T)": "workload.global_batch_tokens",
    "MicroBatchSize": "knob.micro_batch",
    "GradAccum": "knob.accumulation",
}
_FLOPS = "counter.model_flops_per_s_per_device"
# samples per second are cut to whole ones there, and 0 for many rows: not taken
_FIGURES = {
    "Throughput (T/s)": "tokens_per_s",
    "Throughput (T/s/GPU)": "tokens_per_s_per_device",
    "Model TFLOP": _FLOPS,
}
_NEEDED = ("Model", "# GPUs", "GPU", "SeqLen (T)", "GlobalBatchSize", "Throughput (T/s/GPU)", "NumParams")
# MosaicML's clusters: hosts of eight, in boards of eight with eight network cards (1600 Gb/s)
_ACCELERATORS = {"h100_80gb": "h100-sxm-80gb", "a100_80gb": "a100-sxm-80gb", "a100_40gb": "a100-sxm-40gb"}
_LOCAL = 8
_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "fp32": "fp32", "bf16": "bf16"}
_ZERO = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}  # FSDP's names for what ZeRO shards
# layers, hidden size and heads of LLM Foundry's MPT configurations (scripts/train/yamls/pretrain)
_SHAPES = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
_VOCABULARY = 50368
_SAME_PARAMETERS = 2e-3  # norms and biases, which a shape does not count, are fewer


class MosaicTable(Importer):
    """A row is a run. A shape is taken where it gives the row's own number of parameters."""

    name: ClassVar[str] = "mosaic"
    reads: ClassVar[str] = "the benchmark tables of MosaicML's LLM Foundry"
    fills: ClassVar[tuple[str, ...]] = (
        *_COUNTS.values(),
        *_FIGURES.values(),
        *(f"model.{name}" for name in ModelSpec.model_fields),
        *("accelerator.name", "platform.devices_per_node", "workload.precision"),
        *("knob.zero_stage", "knob.activation_checkpointing", "knob.communication_data_type"),
        *("knob.offload_activations", "framework", "status"),
    )
    pattern: ClassVar[str] = "*.md"

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        for row in rows(path, _NEEDED):
            if isinstance(row, SetAside):
                yield row
                continue
            found, notes = _stated(row)
            if isinstance(found, str):
                yield SetAside(str(path), row.line, found)
                continue
            told = repr(sorted(row.cells.items()))
            yield Run(row.line, f"{self.name}-{digest(told)}", found, notes)


def _stated(row: Row) -> tuple[dict[str, Any] | str, list[str]]:
    """Columns of the store, or why the row says too little; and what was odd."""
    cells = row.cells
    values: dict[str, Any] = {
        column: count for name, column in _COUNTS.items() if (count := whole(cells.get(name))) is not None
    }
    for name in ("# GPUs", "SeqLen (T)", "GlobalBatchSize"):
        if _COUNTS[name] not in values:
            return f"{name}: {cells[name]!r} is no count; mend the table", []
    for name, column in _FIGURES.items():
        if (figure := positive(cells.get(name))) is not None:
            values[column] = figure
    if values.get(_FLOPS, 1e12) < 1e6:  # some tables have TFLOP under that heading, others FLOP
        values[_FLOPS] *= 1e12
    if "tokens_per_s_per_device" not in values:
        name = "Throughput (T/s/GPU)"
        return f"{name}: {cells[name]!r} is no throughput; mend the table", []
    shape = _shape(cells["Model"], whole(cells["NumParams"]), values["workload.sequence_length"])
    if isinstance(shape, str):
        return shape, []
    if accelerator := _ACCELERATORS.get(cells["GPU"]):
        values |= {"accelerator.name": accelerator, "platform.devices_per_node": _LOCAL}
    elif cells["GPU"]:
        values["accelerator.name"] = cells["GPU"]
    notes = _uneven(values)
    return {**values, **shape, **_settings(cells), "framework": "composer", "status": "ok"}, notes


def _shape(name: str, parameters: int | None, length: int) -> dict[str, Any] | str:
    """The model of that name, with a learned position for each token; else why its parameters are others."""
    if name not in _SHAPES:
        return f"Model: {name!r} has no known shape; known: {', '.join(_SHAPES)}"
    layers, hidden, heads = _SHAPES[name]
    model = ModelSpec(
        name=f"mpt-{name}",
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        vocabulary=_VOCABULARY,
        max_positions=length,
    )
    if parameters is None or abs(model.parameters / parameters - 1) > _SAME_PARAMETERS:
        return f"NumParams: {parameters} is not what mpt-{name} has ({model.parameters}); it is another model"
    return {f"model.{field}": value for field, value in model.model_dump().items()}


def _uneven(values: dict[str, Any]) -> list[str]:
    """Composer's last micro batch may be a smaller one; then the accumulation is no factor of the batch."""
    micro, steps = values.get("knob.micro_batch"), values.get("knob.accumulation")
    each, rest = divmod(values["workload.global_batch_sequences"], values["platform.devices"])
    if rest or not micro or not steps or each % micro == 0 or -(-each // micro) != steps:
        return []
    del values["knob.accumulation"]
    return [f"the last of {steps} micro batches has {each % micro} sequences instead of {micro}"]


def _settings(cells: dict[str, str]) -> dict[str, Any]:
    precision = _PRECISIONS.get(cells.get("Precision", ""))
    checkpointing = {"True": "full", "False": "none"}.get(cells.get("Activation Checkpointing", ""))
    # Composer's presets: PURE reduces in the training precision, DEFAULT in fp32
    reduced = {"PURE": precision if precision in ("bf16", "fp16") else None, "DEFAULT": "fp32"}
    offload = {"True": True, "False": False}.get(cells.get("Activation CPUOffload", ""))
    told = {
        "workload.precision": precision,
        "knob.zero_stage": _ZERO.get(cells.get("Sharding Strategy", "")),
        "knob.activation_checkpointing": checkpointing,
        "knob.communication_data_type": reduced.get(cells.get("MP Mode", "")),
        "knob.offload_activations": offload,
    }
    return {name: value for name, value in told.items() if value is not None}
