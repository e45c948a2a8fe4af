"""Logs of Megatron-LM and Megatron-DeepSpeed: the dump of arguments, then a line per logged iteration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.lines import Failure, Steps, number, numbered_lines

_BEGIN, _END = re.compile(r"-{3,} arguments -{3,}"), re.compile(r"-{3,} end of arguments -{3,}")
_ARGUMENT = re.compile(r"(?:^|\s)([a-z]\w*) \.* ?(\S.*)$")
_ITERATION = re.compile(r"\biteration\s+(\d+)/\s*(\d+) \|(.*)$")
_FIELD = re.compile(r"([^|:]+):\s*([^|]*)")
_SIZES = ("global batch size", "gloabl batch size")  # a slip of some years, in forks to this day
# argument -> column of the store, where the value is the same
_SAME = {
    "num_layers": "model.layers",
    "hidden_size": "model.hidden_size",
    "ffn_hidden_size": "model.ffn_size",
    "num_attention_heads": "model.heads",
    "padded_vocab_size": "model.vocabulary",
    "num_experts": "model.experts",
    "moe_router_topk": "model.experts_per_token",
    "max_position_embeddings": "model.max_positions",
    "seq_length": "workload.sequence_length",
    "world_size": "devices",
    "data_parallel_size": "knob.dp",
    "tensor_model_parallel_size": "knob.tp",
    "pipeline_model_parallel_size": "knob.pp",
    "virtual_pipeline_model_parallel_size": "knob.vp",
    "context_parallel_size": "knob.cp",
    "expert_model_parallel_size": "knob.ep",
    "micro_batch_size": "knob.micro_batch",
    "zero_stage": "knob.zero_stage",  # Megatron-DeepSpeed
}
_TRUTHS = {
    "swiglu": "model.gated_mlp",
    "sequence_parallel": "knob.sequence_parallel",
    "overlap_grad_reduce": "knob.overlap_comm",
}


class MegatronLog(Importer):
    """A global batch that is ramped up makes a run of each size; several runs in one file are told apart."""

    name = "megatron"
    fills = (
        *sorted({*_SAME.values(), *_TRUTHS.values()}),
        "model.kv_heads",
        "model.tied_embeddings",
        "model.positions",
        "model.norm",
        "workload.precision",
        "workload.optimizer",
        "knob.activation_checkpointing",
        "step_time_s",
        "samples_per_s",
        "loss_first",
        "loss_last",
        "status",
    )
    pattern = "*.[lot][oux][gt]*"  # .log, .out, .txt

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        run: _Run | None = None
        inside = False
        for line, text in numbered_lines(path):
            if _END.search(text):
                inside = False
            elif _BEGIN.search(text):
                if run is not None and (run.steps.first_s is not None or run.arguments):
                    yield run.ended()
                run, inside = _Run(line), True
            elif inside and run is not None and (found := _ARGUMENT.search(text)):
                run.arguments[found[1]] = found[2].strip()
            elif found := _ITERATION.search(text):
                fields = {name.strip().lower(): value.strip() for name, value in _FIELD.findall(found[3])}
                size = next((_whole(fields[label]) for label in _SIZES if label in fields), None)
                if run is None or (run.size is not None and size is not None and size != run.size):
                    if run is not None:
                        yield run.ended()
                    run = _Run(line, dict(run.arguments) if run else {})
                problem = run.add(text, fields, size)
                if problem:
                    yield SetAside(str(path), line, problem)
            elif run is not None:
                run.failure.see(text)
        if run is not None:
            yield run.ended()


@dataclass
class _Run:
    """One run, or that part of it which has one global batch."""

    line: int
    arguments: dict[str, str] = field(default_factory=dict)
    size: int | None = None
    first: str = ""  # its first iteration's line, which stays while the log grows
    steps: Steps = field(default_factory=Steps)
    failure: Failure = field(default_factory=Failure)
    samples_per_s: float | None = None

    def add(self, text: str, fields: dict[str, str], size: int | None) -> str | None:
        """One logged iteration; returns what is wrong with it."""
        seconds = _seconds(fields)
        if seconds is None:
            return "an iteration without an elapsed time per iteration, or cut off in it"
        self.size = self.size or size
        self.first = self.first or text
        self.steps.add(seconds, number(fields.get("lm loss", "")))
        if stated := number(fields.get("samples per second", "")):
            self.samples_per_s = stated
        return None

    def ended(self) -> Run:
        measured = self.steps.values()
        values = _from_arguments(self.arguments) | measured | self.failure.values(bool(measured))
        size = self.size or _whole(self.arguments.get("global_batch_size"))
        if size:
            values["workload.global_batch_sequences"] = size
        key = "\n".join([self.first, *(f"{name}={value}" for name, value in sorted(self.arguments.items()))])
        return Run(self.line, key, values)


def _seconds(fields: dict[str, str]) -> float | None:
    """Printed in milliseconds; by forks and old versions in seconds, which the label says. New versions add
    the mean so far after a slash."""
    for unit, factor in (("ms", 1e-3), ("s", 1.0)):
        value = number(fields.get(f"elapsed time per iteration ({unit})", "").split("/")[0])
        if value is not None and value > 0:
            return value * factor
    return None


def _from_arguments(arguments: dict[str, str]) -> dict[str, Any]:
    """By column of the store; an argument that the version lacks, or that is None, stays unknown."""
    values: dict[str, Any] = {
        column: whole for name, column in _SAME.items() if (whole := _whole(arguments.get(name))) is not None
    }
    values |= {column: arguments[name] == "True" for name, column in _TRUTHS.items() if name in arguments}
    if not values.get("model.experts"):
        values.pop("model.experts_per_token", None)  # a default without experts
    if arguments.get("group_query_attention") == "True":
        values["model.kv_heads"] = _whole(arguments.get("num_query_groups"))
    if "untie_embeddings_and_output_weights" in arguments:
        values["model.tied_embeddings"] = arguments["untie_embeddings_and_output_weights"] != "True"
    if "position_embedding_type" in arguments:
        rotary = arguments["position_embedding_type"] in ("rope", "yarn", "mrope")
        values["model.positions"] = "rotary" if rotary else "learned"
    if "normalization" in arguments:
        values["model.norm"] = arguments["normalization"].lower()
    if "model.layers" in values and "model.hidden_size" in values:
        values["model.name"] = f"megatron-{values['model.layers']}x{values['model.hidden_size']}"
    if arguments.get("use_distributed_optimizer") == "True":
        values.setdefault("knob.zero_stage", 1)  # which it is: states sharded over data parallel ranks
    return values | _numerics(arguments)


def _numerics(arguments: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if arguments.get("fp8", "None") not in ("None", "False"):
        values["workload.precision"] = "fp8"
    elif "bf16" in arguments or "fp16" in arguments:
        on = [name for name in ("bf16", "fp16") if arguments.get(name) == "True"]
        values["workload.precision"] = on[0] if on else "fp32"
    if "optimizer" in arguments:  # its adam decays weights as AdamW does
        values["workload.optimizer"] = {"adam": "adamw"}.get(arguments["optimizer"], arguments["optimizer"])
    if "recompute_granularity" in arguments:
        values["knob.activation_checkpointing"] = arguments["recompute_granularity"].replace("None", "none")
    return values


def _whole(text: str | None) -> int | None:
    value = number(text or "")
    return int(value) if value is not None and value == int(value) else None
