"""Logs of NeMo 1 (progress bars), NeMo 2 (a line a step) and Megatron-Bridge (Megatron's lines)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers import megatron
from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.lines import fields, positive, rates, real, whole
from pretune.datasets.importers.runlog import LogReader, Record, batch

_NEMO2 = re.compile(r".*?\bTraining epoch (\d{1,9}), iteration (\d{1,12})/(\d+) \| (.*)$")
_NEMO1 = re.compile(r".*?\bEpoch (\d{1,9}):.*?\| (\d{1,12})/(\d+|\?) \[([^\]]*)\]")
_STEP_TIME = "train_step_timing in s"
_LOSS = "reduced_train_loss"
# label of NeMo 2 -> column, and what to multiply with
_RATES = {
    "tokens_per_sec_per_gpu": ("tokens_per_s_per_device", 1.0),  # 25.09 and on
    "TFLOPS_per_GPU": ("counter.model_flops_per_s_per_device", 1e12),
}
_PEAK = "peak_memory_usage"  # bytes
# Megatron-Bridge, before the iteration line that it belongs to: "TFLOP" until 25.09, "MODEL_TFLOP" since
_BRIDGE = re.compile(r".*\bStep Time\s*:\s*[\d.]+s\s*GPU utilization:\s*([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU")
_PAUSE = re.compile(r".*(?:Validation DataLoader|Validation: iteration|saving checkpoint|Saving checkpoint)")
_STARTED = re.compile(r".*All distributed processes registered\. Starting with (\d+) processes")
_PADDED = re.compile(r".*Padded vocab_size: (\d+), original vocab_size")
_GROUP = re.compile(
    r".*\bRank 0 has (data|context|tensor model|pipeline model) parallel group\s*: \[([^\]]*)\]"
)
_GROUPS = {"data": "knob.dp", "context": "knob.cp", "tensor model": "knob.tp", "pipeline model": "knob.pp"}
_SIZE = re.compile(r".*> initialized (tensor|pipeline) model parallel with size (\d+)")
_CONFIGURATION = re.compile(r".*\*+ Experiment configuration \*+")
_YAML = re.compile(r"^\s*(?:- )?([A-Za-z_]\w*):(?: (.*))?$")
# key of NeMo 1's configuration -> column
_KEYS = {
    "micro_batch_size": "knob.micro_batch",
    "tensor_model_parallel_size": "knob.tp",
    "pipeline_model_parallel_size": "knob.pp",
    "virtual_pipeline_model_parallel_size": "knob.vp",
    "context_parallel_size": "knob.cp",
    "expert_model_parallel_size": "knob.ep",
    "encoder_seq_length": "workload.sequence_length",
    "num_layers": "model.layers",
    "hidden_size": "model.hidden_size",
    "ffn_hidden_size": "model.ffn_size",
    "num_attention_heads": "model.heads",
    "num_query_groups": "model.kv_heads",
    "max_position_embeddings": "model.max_positions",
    "num_nodes": "platform.nodes",
    "devices": "platform.devices_per_node",
    "global_batch_size": "workload.global_batch_sequences",
}


class NeMoLog(Importer):
    """A step's time is what NeMo's timer says: without evaluation and checkpoints.

    Progress bars repeat the figures of a step and round the count of samples, so that the step is taken from
    the bar itself and the batch from the configuration. Megatron-Bridge's iteration lines are Megatron's.
    """

    name: ClassVar[str] = "nemo"
    reads: ClassVar[str] = "training logs of NeMo 1 and 2, and of Megatron-Bridge"
    fills: ClassVar[tuple[str, ...]] = (
        *_KEYS.values(),
        *("knob.dp", "model.vocabulary", "platform.devices", "workload.global_batch_tokens"),
        *("step_time_s", "window_times_s", "warmup_windows", "tokens_per_s_per_device", "loss_first"),
        *("loss_last", "peak_memory_allocated_bytes", "peak_memory_reserved_bytes", "status", "cause"),
        "counter.model_flops_per_s_per_device",
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        return _Reader(path, self.name).runs()


class _Reader(LogReader):
    needs = "line with a step's time"

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self.last: tuple[int, int] | None = None  # epoch and step
        self.flops: float | None = None
        self.configuring = self.paused = False

    def read(self, number: int, line: str) -> Iterator[Run | SetAside]:
        if match := _NEMO2.match(line):
            yield from self._step(number, (int(match[1]), int(match[2])), fields(match[4]), line)
        elif match := _NEMO1.match(line):
            yield from self._step(number, (int(match[1]), int(match[2])), fields(match[4], ",", "="), line)
        elif match := megatron.ITERATION.match(line):
            yield from self._bridge(number, int(match[1]), fields(match[2]), line)
        elif match := _BRIDGE.match(line):
            self.flops = positive(match[1])
        elif self.configuring and (match := _YAML.match(line)):
            self._configured(match[1], (match[2] or "").strip())
        else:
            yield from self._other(number, line)

    def _other(self, number: int, line: str) -> Iterator[Run | SetAside]:
        self.configuring = False
        if _CONFIGURATION.match(line) or (_STARTED.match(line) and self.run.records):
            if self.run.records or self.run.failures.found:
                yield from self.begin(number, {})
                self.last = None
            self.configuring = _CONFIGURATION.match(line) is not None
        if match := _STARTED.match(line) or _PADDED.match(line):
            column = "platform.devices" if "registered" in line else "model.vocabulary"
            self._state(column, whole(match[1]))
        elif match := _GROUP.match(line):
            self._state(_GROUPS[match[1]], match[2].count(",") + 1)
        elif match := _SIZE.match(line):
            self._state("knob.tp" if match[1] == "tensor" else "knob.pp", whole(match[2]))
        elif _PAUSE.match(line):
            self.paused = True
        else:
            self.run.failures.read(line)

    def _state(self, column: str, value: Any) -> None:
        if value is not None:
            self.run.values[column] = value

    def _configured(self, key: str, text: str) -> None:
        value = whole(text)
        if key in _KEYS and value is not None and _KEYS[key] not in self.run.values:  # the model's come first
            self.run.values[_KEYS[key]] = value
        length = self.run.values.get("workload.sequence_length")
        if length and (sequences := self.run.values.get("workload.global_batch_sequences")):
            self.run.values |= batch(sequences, length)

    def _step(
        self, number: int, step: tuple[int, int], figures: dict[str, str], line: str
    ) -> Iterator[Run | SetAside]:
        seconds = positive(figures.get(_STEP_TIME))
        if seconds is None or step == self.last:  # another rank, or the bar drawn again
            return
        sequences = whole(figures.get("global_batch_size"))
        yield from self._segment(number, self.last is not None and step < self.last, sequences)
        self.run.record(Record(seconds, 1, False, rates(_RATES, figures)), line)
        self.run.loss(real(figures[_LOSS]) if _LOSS in figures else None)
        self.run.peak("peak_memory_allocated_bytes", positive(figures.get(_PEAK)))
        self.last = step

    def _bridge(
        self, number: int, iteration: int, figures: dict[str, str], line: str
    ) -> Iterator[Run | SetAside]:
        seconds = megatron.elapsed(figures)
        if seconds is None or self.last == (0, iteration):
            return
        sequences = whole(figures.get("global batch size"))
        yield from self._segment(number, self.last is not None and (0, iteration) < self.last, sequences)
        flops = {"counter.model_flops_per_s_per_device": self.flops * 1e12} if self.flops else {}
        windows = max(iteration - self.last[1], 1) if self.last else 1
        self.run.record(Record(seconds, windows, self.paused, flops), line)
        self.run.loss(real(figures["lm loss"]) if "lm loss" in figures else None)
        self.last, self.flops, self.paused = (0, iteration), None, False

    def _segment(self, number: int, backwards: bool, sequences: int | None) -> Iterator[Run | SetAside]:
        """Another run where the step falls back or the batch changes; the batch in either case."""
        self.recognised = True
        before = self.run.values.get("workload.global_batch_sequences")
        if self.run.records and (backwards or (sequences and sequences != before)):
            yield from self.begin(number, self.run.stated)
        if sequences:
            self.run.values |= batch(sequences, self.run.values.get("workload.sequence_length"))
