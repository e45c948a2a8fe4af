"""nanotron's benchmark CSV: a line for each run with ``NANOTRON_BENCHMARK=1``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.table import Table
from pretune.errors import InputError

# column of the store -> nanotron's names for it, the newest first; its "GB" of memory are 2^30 bytes
_NAMES = {
    "model.name": ("Total Params",),  # all that it says of a model beside the shape
    "model.layers": ("num_layers",),
    "model.hidden_size": ("hidden_size",),
    "model.heads": ("num_heads",),
    "model.kv_heads": ("num_kv_heads",),
    "model.vocabulary": ("vocab_size",),
    "model.max_positions": ("max_pos",),
    "model.tied_embeddings": ("tie_word_embeddings",),
    "workload.sequence_length": ("seq_len",),
    "workload.global_batch_sequences": ("gbs",),
    "workload.precision": ("dtype",),
    "platform.nodes": ("nodes",),
    "knob.micro_batch": ("mbs",),
    "knob.accumulation": ("batch_accum",),
    **{f"knob.{name}": (name, name.upper()) for name in ("dp", "tp", "pp", "cp", "ep")},
    "knob.zero_stage": ("zero_stage",),
    "knob.activation_checkpointing": ("recompute_layer",),
    "knob.tp_mode": ("tp_mode",),
    "knob.tp_async_comm": ("tp_async_comm",),
    "knob.pp_engine": ("pp_engine",),
    "knob.ddp_bucket_cap_mb": ("ddp_bucket_cap_mb",),
    "knob.accumulate_grad_in_fp32": ("accumulate_grad_in_fp32",),
    "knob.hidden_act": ("hidden_act",),
    "tokens_per_s_per_device": ("tok/s/gpu",),
    "counter.model_flops_per_s_per_device": ("mTFLOPs",),
    "peak_memory_allocated_bytes": ("Mem Alloc (GB)",),
    "peak_memory_reserved_bytes": ("Mem Res (GB)",),
}
_UNITS = {
    "counter.model_flops_per_s_per_device": "T",
    "peak_memory_allocated_bytes": "GiB",
    "peak_memory_reserved_bytes": "GiB",
}
_COUNTS = (
    *(f"knob.{name}" for name in ("dp", "tp", "pp", "cp", "ep", "micro_batch", "accumulation")),
    *(f"model.{name}" for name in ("layers", "hidden_size", "heads", "kv_heads", "vocabulary")),
    *("workload.sequence_length", "workload.global_batch_sequences", "platform.nodes"),
)
_MOST = 2**30  # of anything that is counted; products of counts stay whole numbers
_KINDS = {  # of the knobs that are nanotron's own, which have no declared type
    "knob.tp_async_comm": bool,
    "knob.accumulate_grad_in_fp32": bool,
    "knob.ddp_bucket_cap_mb": int,
    "knob.pp_engine": str,
}
_NEEDED = ("tokens_per_s_per_device", "knob.dp", "knob.tp", "knob.pp", "workload.sequence_length")
_KEY = ["job_id", "name", "model_name", "seq_len", "mbs", "batch_accum", "tok/s/gpu"]
_PRECISIONS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Nanotron(Table):
    """A line is a run. It names no accelerator: ``--platform`` does."""

    name: ClassVar[str] = "nanotron"
    reads: ClassVar[str] = "nanotron's benchmark CSV"
    fills: ClassVar[tuple[str, ...]] = (
        *(column for column in _NAMES if column != "knob.hidden_act"),
        *("model.ffn_size", "model.gated_mlp", "model.positions", "model.norm"),
        *("platform.devices", "platform.devices_per_node", "knob.sequence_parallel"),
    )
    pattern: ClassVar[str] = "*.csv"

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        for found in super().read(path):
            if isinstance(found, SetAside):
                yield found
                continue
            values, notes = dict(found.values), list(found.notes)
            wrong = [name for name in _COUNTS if not 1 <= values.get(name, 1) < _MOST]
            wrong += [name for name, kind in _KINDS.items() if not isinstance(values.get(name, kind()), kind)]
            wrong += ["knob.dp"] if max(_devices(values), _sequences(values)) >= _MOST else []
            if wrong:
                reason = f"{_NAMES[wrong[0]][0]}: {values[wrong[0]]!r} is no such figure; mend the line"
                yield SetAside(str(path), found.line, reason)
                continue
            _layout(values)
            notes += _batch(values) + _shape(values)
            yield replace(found, values=values, notes=notes)

    def _for(self, header: list[str], path: Path) -> Mapping:
        columns = {
            column: next(name for name in names if name in header)
            for column, names in _NAMES.items()
            if any(name in header for name in names)
        }
        for column in _NEEDED:
            if column not in columns:
                name = _NAMES[column][0]
                raise InputError(f"{path}: has no column {name!r}; give nanotron's benchmark CSV")
        units = {column: unit for column, unit in _UNITS.items() if column in columns}
        return Mapping(columns=columns, units=units, key=_KEY)


def _devices(values: dict[str, Any]) -> int:
    """The product of the degrees; experts share the devices of the others."""
    return math.prod(values.get(f"knob.{name}", 1) for name in ("dp", "tp", "pp", "cp"))


def _sequences(values: dict[str, Any]) -> int:
    """The global batch; 0 where a factor is not stated."""
    return math.prod(values.get(f"knob.{name}", 0) for name in ("micro_batch", "accumulation", "dp"))


def _layout(values: dict[str, Any]) -> None:
    """Devices by node, and nanotron's words for the layout in the store's."""
    devices = values["platform.devices"] = _devices(values)
    nodes = values.pop("platform.nodes", None)
    if nodes and devices % nodes == 0:
        values["platform.devices_per_node"] = devices // nodes
    mode = str(values.get("knob.tp_mode", "")).rpartition(".")[2]  # of an enumeration, in some versions
    if mode:
        values |= {"knob.tp_mode": mode, "knob.sequence_parallel": mode == "REDUCE_SCATTER"}
    recompute = values.pop("knob.activation_checkpointing", None)
    if recompute in ("True", "False"):
        values["knob.activation_checkpointing"] = "full" if recompute == "True" else "none"
    precision = _PRECISIONS.get(values.pop("workload.precision", ""))
    values |= {"workload.precision": precision} if precision else {}


def _batch(values: dict[str, Any]) -> list[str]:
    """``gbs`` counts sequences; in some versions tokens, which shows beside micro batch and accumulation."""
    told, length = values.get("workload.global_batch_sequences"), values.get("workload.sequence_length")
    if not told or not length or told != _sequences(values) * length:
        return []
    values["workload.global_batch_sequences"] = told // length
    return ["gbs counts tokens, by micro batch, accumulation and dp beside it"] if length > 1 else []


def _shape(values: dict[str, Any]) -> list[str]:
    """What a gated activation says of the model, and the feed-forward size that makes its parameters."""
    total, activation = values.pop("model.name", None), values.pop("knob.hidden_act", None)
    if total:
        values["model.name"] = f"nanotron-{total}"
    if activation != "silu":  # of its other models' blocks it says too little
        return []
    values |= {"model.gated_mlp": True, "model.positions": "rotary", "model.norm": "rmsnorm"}
    size = _feed_forward(values, str(total))
    if size is None:
        return ["model.ffn_size is not stated, nor told by Total Params; state it under constants in --map"]
    values["model.ffn_size"] = size
    return []


def _feed_forward(values: dict[str, Any], total: str) -> int | None:
    """The one multiple of 256 that gives the total, which has three digits; None if there is none.

    Parameters of a Llama (Touvron et al. 2023, arXiv:2302.13971): layers x (hidden x (2 hidden + 2 kv heads
    x head size) + 3 hidden x ffn + 2 hidden) + hidden + vocabulary x hidden, twice if embeddings are untied.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", total)
    names = ("layers", "hidden_size", "heads", "kv_heads", "vocabulary", "tied_embeddings")
    shape = [values.get(f"model.{name}") for name in names]
    if match is None or None in shape:
        return None
    layers, hidden, heads, kv_heads, vocabulary, tied = shape
    digits = float(match[1])
    if not (0 < digits < math.inf and layers and hidden and heads):
        return None
    unit = 1.0 if digits >= 100 else 0.1 if digits >= 10 else 0.01
    scale = _SIZES[match[2]]
    attention = 2 * hidden * hidden + 2 * hidden * kv_heads * hidden // heads
    rest = layers * (attention + 2 * hidden) + hidden + vocabulary * hidden * (1 if tied else 2)
    each = 3 * hidden * layers  # parameters per unit of the feed-forward size
    low, high = ((digits + side * unit / 2) * scale - rest for side in (-1, 1))
    first, last = math.ceil(max(low / each / 256, 1)), math.floor(high / each / 256)
    return 256 * first if first == last < _MOST else None
