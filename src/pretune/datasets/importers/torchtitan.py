"""Logs of torchtitan, from its first versions (``wps``) on: one rank's or all ranks', coloured or not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.lines import counts, json_object, positive, real, whole
from pretune.datasets.importers.runlog import LogReader, Record, batch

_STEP = re.compile(r".*?(?<!validate )\bstep:\s*(\d{1,12})\s+loss:\s*(\S+)(.*)$")
# tokens per second per device: "wps" in 2024's first months, "tps" since
_RATE = re.compile(r"\b(?:tps|wps):\s*([\d,.]+)")
_FLOPS = re.compile(r"\btflops:\s*([\d,.]+)")  # since 2025
_MEMORY = re.compile(r"memory:\s*([\d.]+)GiB")  # the largest that was reserved
_PAUSE = re.compile(r".*(?:validate step:|Saving the checkpoint|Finished saving the checkpoint)")
# the batch: "Training starts at step 1, with ..." until 2025, "Trainer is initialized with ..." since
_BATCH = re.compile(
    r".*with local batch size (\d+), global batch size (\d+), "
    r"(?:gradient accumulation steps (\d+), )?sequence length (\d+)"
)
_START = re.compile(r".*(?:Starting job: |Training starts at step \d|Trainer is initialized with)")
_JOB = re.compile(r".*\bStarting job: ")
# "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]" until 2025; a list "pp=1, tp=2" since
_MESH = re.compile(r".*Building \d+-D device mesh with (\[[^\]]*\]), (\[[^\]]*\])")
_DEGREES = re.compile(r".*Building device mesh with parallelism: (.*)$")
_MODEL = re.compile(r".*Building (\S+ \S+) with (?:\w+\((.*)\)|(\{.*))\s*$")
_SIZE = re.compile(r"\"?(\w+)\"?\s*[=:]\s*([^,\s{}()]+)")
_DEVICE = re.compile(r".*\b(?:CUDA|XPU|HIP) capacity: (.+?) with ([\d.]+)GiB memory")
_CHECKPOINTING = re.compile(r".*Applied (selective|full) activation checkpointing to the model")
_COMPILED = re.compile(r".*Compiling each TransformerBlock with torch\.compile")
_CONFIG = re.compile(r".*Running with (?:args|configs?): (\{.*\})\s*$")
_SHAPE = {
    "dim": "model.hidden_size",
    "n_layers": "model.layers",
    "n_heads": "model.heads",
    "n_kv_heads": "model.kv_heads",
    "vocab_size": "model.vocabulary",
    "max_seq_len": "model.max_positions",
}
_KNOBS = {"pp": "knob.pp", "tp": "knob.tp", "cp": "knob.cp", "ep": "knob.ep"}
_SHARDED = ("dp_replicate", "dp_shard", "dp")  # what data parallelism is made of
_MESHED = (*_SHARDED, "pp", "tp", "cp")  # the product of these is the job; ep lies inside
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class TorchTitanLog(Importer):
    """``tps`` is a device's tokens per second over the log interval, validation and checkpoints included.

    It is averaged over the tokens of the intervals after warm-up; those with a checkpoint or a validation in
    them are not counted. Window times follow from it where the log tells batch and devices. Lines that
    several ranks print alike are taken once.
    """

    name: ClassVar[str] = "torchtitan"
    reads: ClassVar[str] = "torchtitan's logs"
    fills: ClassVar[tuple[str, ...]] = (
        *_SHAPE.values(),
        *_KNOBS.values(),
        *("model.name", "model.ffn_size", "model.gated_mlp", "model.norm", "model.positions"),
        *("model.tied_embeddings", "knob.dp", "knob.micro_batch", "knob.accumulation", "knob.compile"),
        *("knob.dp_shard", "knob.dp_replicate", "knob.activation_checkpointing", "platform.devices"),
        *("accelerator.name", "accelerator.memory_bytes", "workload.sequence_length", "workload.precision"),
        *("workload.global_batch_tokens", "workload.global_batch_sequences", "tokens_per_s_per_device"),
        *("step_time_s", "window_times_s", "warmup_windows", "peak_memory_reserved_bytes", "loss_first"),
        *("loss_last", "status", "cause", "counter.model_flops_per_s_per_device"),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        return _Reader(path, self.name).runs()


class _Reader(LogReader):
    needs = "batch and no step line"

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self.step = 0
        self.paused = False

    def read(self, number: int, line: str) -> Iterator[Run | SetAside]:
        if match := _STEP.match(line):
            yield from self._progress(number, int(match[1]), match[2], match[3], line)
        elif _PAUSE.match(line):
            self.paused = True
        elif self.run.records and _START.match(line):
            yield from self.begin(number, {} if _JOB.match(line) else self.run.stated)
            self.run.values |= stated(line)
        elif facts := stated(line):
            self.run.values |= facts
        else:
            self.run.failures.read(line)
        self.recognised |= "workload.sequence_length" in self.run.values

    def ended(self) -> Iterator[Run | SetAside]:
        """Time per token becomes time per window where batch and devices are known."""
        for outcome in super().ended():
            if isinstance(outcome, Run):
                _in_windows(outcome.values)
            yield outcome

    def begin(self, number: int, values: dict[str, Any]) -> Iterator[Run | SetAside]:
        yield from super().begin(number, values)
        self.step = 0

    def _progress(self, number: int, step: int, loss: str, rest: str, line: str) -> Iterator[Run | SetAside]:
        self.recognised = True
        if (memory := _MEMORY.search(rest)) is not None:
            self.run.peak("peak_memory_reserved_bytes", (positive(memory[1]) or 0) * 2**30)
        rate = positive(match[1]) if (match := _RATE.search(rest)) else None
        if rate is None or (step == self.step and self.run.records):  # the same line of another rank
            return
        if step < self.step:
            yield from self.begin(number, self.run.stated)
        flops = positive(match[1]) if (match := _FLOPS.search(rest)) else None
        rates = {"counter.model_flops_per_s_per_device": flops * 1e12} if flops else {}
        resumed = not self.run.records and step > 1
        windows = 1 if resumed else max(step - self.step, 1)
        self.run.record(Record(1 / rate, windows, self.paused, rates), line)
        self.run.loss(real(loss))
        self.step, self.paused = step, False


def _in_windows(values: dict[str, Any]) -> None:
    """Turns seconds per token of a device into the columns of the store."""
    per_token = values.pop("step_time_s", None)
    times = values.pop("window_times_s", None)
    if per_token is None:
        return
    if values["status"] == "ok":
        values["tokens_per_s_per_device"] = 1 / per_token
    tokens, devices = values.get("workload.global_batch_tokens"), values.get("platform.devices")
    if tokens and devices:
        values["step_time_s"] = per_token * tokens / devices
        values["window_times_s"] = [each * tokens / devices for each in times]


def stated(line: str) -> dict[str, Any]:
    """What a line of torchtitan's start says, by column of the store; {} for any other line."""
    if match := _BATCH.match(line):
        local, sequences, accumulation, length = (whole(each) for each in match.groups())
        if not local or not sequences or not length:
            return {}
        steps = {"knob.accumulation": accumulation} if accumulation else {}
        told = {"knob.micro_batch": local, "workload.sequence_length": length}
        return told | batch(sequences, length) | steps
    if match := _MESH.match(line):
        names, sizes = re.findall(r"\w+", match[1]), re.findall(r"\d+", match[2])
        return _mesh(dict(zip(names, sizes, strict=False))) if len(names) == len(sizes) else {}
    if match := _DEGREES.match(line):
        return _mesh(dict(re.findall(r"(\w+)=(\d+)", match[1])))
    if match := _DEVICE.match(line):
        return {"accelerator.name": match[1], "accelerator.memory_bytes": int((real(match[2]) or 0) * 2**30)}
    if match := _CHECKPOINTING.match(line):
        return {"knob.activation_checkpointing": match[1]}
    if _COMPILED.match(line):
        return {"knob.compile": True}
    if match := _MODEL.match(line):
        return _shape(match[1], dict(_SIZE.findall(match[2] or match[3])))
    if match := _CONFIG.match(line):
        return _configured(match[1])
    return {}


def _mesh(degrees: dict[str, str]) -> dict[str, Any]:
    counts = {name: count for name, text in degrees.items() if (count := whole(text)) is not None}
    if not counts:
        return {}
    values: dict[str, Any] = {_KNOBS[name]: count for name, count in counts.items() if name in _KNOBS}
    values["knob.dp"] = math.prod(counts.get(name, 1) for name in _SHARDED)
    values["platform.devices"] = math.prod(counts.get(name, 1) for name in _MESHED)
    return values | {f"knob.{name}": counts[name] for name in ("dp_shard", "dp_replicate") if name in counts}


def _shape(name: str, sizes: dict[str, str]) -> dict[str, Any]:
    """The model's shape; a Llama's feed-forward size follows from three of its arguments.

    Source: ``FeedForward`` and ``TransformerBlock`` of torchtitan's llama3 (two thirds of 4 x dim, times
    ``ffn_dim_multiplier``, rounded up to ``multiple_of``), as in Llama's reference code.
    """
    values = counts(_SHAPE, sizes)
    dim, multiple = whole(sizes.get("dim")), whole(sizes.get("multiple_of"))
    if dim is None or "model.layers" not in values:
        return {}
    values["model.name"] = name
    if name.startswith("llama") and multiple:
        size = int((positive(sizes.get("ffn_dim_multiplier")) or 1.0) * int(2 * 4 * dim / 3))
        values["model.ffn_size"] = -(-size // multiple) * multiple
        values |= {"model.gated_mlp": True, "model.norm": "rmsnorm", "model.positions": "rotary"}
        values["model.tied_embeddings"] = False
    return values


def _configured(text: str) -> dict[str, Any]:
    """From the configuration that it prints in one line."""
    config = json_object(text) or {}
    training, checkpointing = (config.get(key) for key in ("training", "activation_checkpoint"))
    values: dict[str, Any] = {}
    if isinstance(training, dict):
        values["workload.precision"] = _PRECISIONS.get(str(training.get("mixed_precision_param")))
    if isinstance(checkpointing, dict) and checkpointing.get("mode") in ("none", "selective", "full"):
        values["knob.activation_checkpointing"] = checkpointing["mode"]
    return {column: value for column, value in values.items() if value is not None}
