"""Logs of Megatron-LM and Megatron-DeepSpeed, of any version: arguments and iteration lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.lines import counts, fields, positive, rates, real, unprefixed, whole
from pretune.datasets.importers.runlog import LogReader, Record, RunLog, batch

ITERATION = re.compile(r".*?\biteration\s+(\d{1,12})/\s*(?:\d+|infinity) \|(.*\|)\s*$")
# label of an iteration line -> seconds in its unit
TIMES = {
    "elapsed time per iteration (ms)": 1e-3,  # Megatron-LM, all versions; Megatron-DeepSpeed
    "elapsed time per iteration (s)": 1.0,  # BigScience's Megatron-DeepSpeed
}
# label -> column, and what to multiply with
RATES = {
    "tokens per gpu per second (tgs)": ("tokens_per_s_per_device", 1.0),  # Megatron-DeepSpeed
    "tokens-per-second-per-gpu": ("tokens_per_s_per_device", 1.0),  # Megatron-DeepSpeed of 2023
    "throughput (token/sec/GPU)": ("tokens_per_s_per_device", 1.0),  # FlagScale
    "throughput per GPU (TFLOP/s/GPU)": ("counter.model_flops_per_s_per_device", 1e12),  # core 0.4 and on
    "flop throughput (TFLOP/sec/GPU)": ("counter.model_flops_per_s_per_device", 1e12),  # FlagScale
    "TFLOPs": ("counter.model_flops_per_s_per_device", 1e12),  # Megatron-DeepSpeed
}
SAMPLES_PER_S = "samples per second"  # Megatron-DeepSpeed
LOSSES = ("lm loss", "loss")

_BEGIN = re.compile(r"-{4,} arguments -{4,}")
_END = re.compile(r"-{4,} end of arguments -{4,}")
_ARGUMENT = re.compile(r"\s*(\w+) \.* (.*?)\s*$")  # no dots after a name that fills the column
_PADDED = re.compile(r".*padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")
_MEMORY = re.compile(r".*\(after \d+ iterations\) memory \(MB\) \|(.*)$")
_PAUSE = re.compile(r".*(?:validation loss at|saved checkpoint|saving checkpoint|\bevaluate \.{3,})")
# argument -> column, where the value is a count as it stands; where a dump has both, the later line counts
_COUNTS = {
    "batch_size": "knob.micro_batch",  # Megatron-LM 1.x: of one model replica, without accumulation
    "model_parallel_size": "knob.tp",  # Megatron-LM 1.x
    "pipe_parallel_size": "knob.pp",  # DeepSpeedExamples' Megatron-LM 1.1.5
    "gas": "knob.accumulation",  # DeepSpeedExamples' Megatron-LM 1.1.5
    "num_layers": "model.layers",
    "hidden_size": "model.hidden_size",
    "num_attention_heads": "model.heads",
    "max_position_embeddings": "model.max_positions",
    "padded_vocab_size": "model.vocabulary",
    "seq_length": "workload.sequence_length",
    "micro_batch_size": "knob.micro_batch",
    "data_parallel_size": "knob.dp",
    "tensor_model_parallel_size": "knob.tp",
    "pipeline_model_parallel_size": "knob.pp",
    "virtual_pipeline_model_parallel_size": "knob.vp",
    "context_parallel_size": "knob.cp",
    "expert_model_parallel_size": "knob.ep",
    "expert_tensor_parallel_size": "knob.expert_tp",
    "ddp_bucket_size": "knob.reduce_bucket_size",
    "world_size": "platform.devices",
}
_FLAGS = {  # frameworks/megatron_knobs.py says what each is
    "swiglu": "model.gated_mlp",
    "sequence_parallel": "knob.sequence_parallel",
    "overlap_grad_reduce": "knob.overlap_comm",
    "overlap_param_gather": "knob.overlap_param_gather",
    "tp_comm_overlap": "knob.tp_comm_overlap",
    "overlap_p2p_comm": "knob.overlap_p2p_comm",
    "moe_grouped_gemm": "knob.moe_grouped_gemm",
    "cross_entropy_loss_fusion": "knob.cross_entropy_loss_fusion",
}
_CHOICES = {
    "cp_comm_type": ("knob.cp_comm_type", ("p2p", "all_gather", "a2a")),
    "moe_token_dispatcher_type": ("knob.moe_token_dispatcher", ("allgather", "alltoall", "flex")),
}
_POSITIONS = {"learned_absolute": "learned", "rope": "rotary"}
_NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}


class MegatronLog(Importer):
    """What rank 0 or the last rank prints; several runs may follow each other in one file.

    A run ends where the arguments are printed anew, where the iteration falls back (a restart), and where the
    global batch changes (ramp-up), since a batch of another size is another workload. An interval's time is
    Megatron's mean over it; intervals with a checkpoint or an evaluation in them are not counted.
    """

    name: ClassVar[str] = "megatron"
    reads: ClassVar[str] = "logs of Megatron-LM and Megatron-DeepSpeed, of all years, with ramped batches"
    fills: ClassVar[tuple[str, ...]] = (
        *dict.fromkeys(_COUNTS.values()),
        *_FLAGS.values(),
        *(column for column, _ in _CHOICES.values()),
        *("knob.communication_data_type", "knob.recompute_method", "knob.recompute_num_layers"),
        *(f"model.{name}" for name in ("ffn_size", "kv_heads", "tied_embeddings", "positions", "norm")),
        *("model.experts", "model.experts_per_token", "workload.global_batch_tokens"),
        *("workload.precision", "workload.optimizer", "knob.zero_stage", "knob.attention"),
        "knob.activation_checkpointing",
        *("step_time_s", "window_times_s", "warmup_windows", "tokens_per_s", "tokens_per_s_per_device"),
        *("loss_first", "loss_last", "peak_memory_allocated_bytes", "peak_memory_reserved_bytes"),
        *("status", "cause", "counter.model_flops_per_s_per_device", "workload.global_batch_sequences"),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        return _Reader(path, self.name).runs()


class _Reader(LogReader):
    needs = "arguments and no iteration line"

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self.arguments: dict[str, str] | None = None  # while their block is open
        self.values: dict[str, Any] = {}
        self.iteration: int | None = None
        self.interval: int | None = None
        self.paused = False

    def read(self, number: int, line: str) -> Iterator[Run | SetAside]:
        if self.arguments is not None:
            self._argument(line)
        elif match := ITERATION.match(line):
            yield from self._iteration(number, int(match[1]), fields(match[2]), line)
        elif _BEGIN.search(line):
            yield from self.begin(number, {})
            self.recognised, self.arguments = True, {}
            self.values, self.iteration = {}, None
        elif match := _PADDED.match(line):
            self._state("model.vocabulary", whole(match[1]))
        elif match := _MEMORY.match(line):
            self._memory(fields(match[1]))
        elif _PAUSE.match(line):
            self.paused = True
        else:
            self.run.failures.read(line)

    def _argument(self, line: str) -> None:
        assert self.arguments is not None
        if match := _ARGUMENT.match(unprefixed(line)):
            self.arguments[match[1]] = match[2]
        elif _END.search(line):
            self.values = stated(self.arguments)
            self.interval = whole(self.arguments.get("log_interval"))
            self.run = RunLog(self.run.line, self.values)
            self.arguments = None

    def _state(self, column: str, value: Any) -> None:
        if value is not None:
            self.values[column] = self.run.values[column] = value

    def _memory(self, figures: dict[str, str]) -> None:
        for label, kind in (("max allocated", "allocated"), ("max reserved", "reserved")):
            megabytes = positive(figures.get(label))  # Megatron divides by 1024 twice
            self.run.peak(f"peak_memory_{kind}_bytes", megabytes and megabytes * 2**20)

    def _iteration(
        self, number: int, iteration: int, figures: dict[str, str], line: str
    ) -> Iterator[Run | SetAside]:
        self.recognised = True
        sequences = whole(figures.get("global batch size"))
        seconds = elapsed(figures)
        if seconds is None or iteration == self.iteration:  # the same line of another rank
            if seconds is None:
                self.run.note(f"line {number}: states no elapsed time with a unit; not counted")
            return
        backwards = self.iteration is not None and iteration < self.iteration
        before = self.run.values.get("workload.global_batch_sequences")
        if backwards or (self.run.records and sequences != before):
            yield from self.begin(number, self.values)
            self.iteration = None if backwards else self.iteration
        if sequences is not None:
            self.run.values |= batch(sequences, self.values.get("workload.sequence_length"))
        self._progress(iteration, seconds, figures, line)

    def _progress(self, iteration: int, seconds: float, figures: dict[str, str], line: str) -> None:
        if self.iteration is not None:  # a longer gap is of lines that the log does not have
            gap = iteration - self.iteration
            self.interval = min(gap, self.interval or gap)
        record = Record(seconds, self.interval or 1, self.paused, self._rates(figures))
        self.run.record(record, line)
        self.run.loss(next((real(figures[label]) for label in LOSSES if label in figures), None))
        self.iteration, self.paused = iteration, False

    def _rates(self, figures: dict[str, str]) -> dict[str, float]:
        samples, length = positive(figures.get(SAMPLES_PER_S)), self.values.get("workload.sequence_length")
        return rates(RATES, figures) | ({"tokens_per_s": samples * length} if samples and length else {})


def elapsed(figures: dict[str, str]) -> float | None:
    """Seconds per iteration, by the unit that the label names."""
    times = ((positive(figures.get(label)), factor) for label, factor in TIMES.items())
    return next((value * factor for value, factor in times if value is not None), None)


def stated(arguments: dict[str, str]) -> dict[str, Any]:
    """Columns of the store from Megatron's arguments, by their names over the versions."""
    values = counts(_COUNTS, arguments)
    for name, column in _FLAGS.items():
        if arguments.get(name) in ("True", "False"):
            values[column] = arguments[name] == "True"
    for name, (column, choices) in _CHOICES.items():
        if (told := arguments.get(name, "").strip("[]'")) in choices:
            values[column] = told
    values |= _model(arguments) | _training(arguments)
    sequences = whole(arguments.get("global_batch_size"))
    return values | (batch(sequences, values.get("workload.sequence_length")) if sequences else {})


def _model(arguments: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {"model.ffn_size": _ffn_size(arguments)}
    if arguments.get("group_query_attention") == "True":  # else num_query_groups is its default, 1
        values["model.kv_heads"] = whole(arguments.get("num_query_groups"))
    elif (heads := whole(arguments.get("num_key_value_heads"))) is not None:  # Megatron-DeepSpeed
        values["model.kv_heads"] = heads
    elif "group_query_attention" in arguments:
        values["model.kv_heads"] = whole(arguments.get("num_attention_heads"))
    if "untie_embeddings_and_output_weights" in arguments:
        values["model.tied_embeddings"] = arguments["untie_embeddings_and_output_weights"] != "True"
    rotary = arguments.get("use_rotary_position_embeddings") == "True"
    kind = "rope" if rotary else arguments.get("position_embedding_type", "")
    values["model.positions"] = _POSITIONS.get(kind.rpartition(".")[2])
    values["model.norm"] = _NORMS.get(arguments.get("normalization", ""))
    if (experts := whole(arguments.get("num_experts", "").strip("[]"))) and experts > 1:
        values["model.experts"] = experts
        values["model.experts_per_token"] = whole(arguments.get("moe_router_topk", arguments.get("topk")))
        values["model.ffn_size"] = whole(arguments.get("moe_ffn_hidden_size")) or values["model.ffn_size"]
    return {column: value for column, value in values.items() if value is not None}


def _ffn_size(arguments: dict[str, str]) -> int | None:
    """As stated, or as Megatron sets it: 4 x hidden, with a gate 2/3 of it in whole 64s (Megatron-LM,
    training/arguments.py, validate_args)."""
    hidden = whole(arguments.get("hidden_size"))
    usual = hidden and (hidden * 8 // 3 // 64 * 64 if arguments.get("swiglu") == "True" else 4 * hidden)
    return whole(arguments.get("ffn_hidden_size")) or usual


def _training(arguments: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if arguments.get("fp8", "None") not in ("None", "False"):
        values["workload.precision"] = "fp8"
    elif "bf16" in arguments or "fp16" in arguments:
        on = [name for name in ("bf16", "fp16") if arguments.get(name) == "True"]
        values["workload.precision"] = on[0] if on else "fp32"
    values["workload.optimizer"] = {"adam": "adamw", "sgd": "sgd"}.get(arguments.get("optimizer", ""))
    granularity = arguments.get("recompute_granularity", arguments.get("checkpoint_activations"))
    kinds = {"None": "none", "False": "none", "True": "full", "full": "full", "selective": "selective"}
    values["knob.activation_checkpointing"] = kinds.get(granularity or "")
    if kinds.get(granularity or "") == "full":
        method = arguments.get("recompute_method")
        values["knob.recompute_method"] = method if method in ("uniform", "block") else None
        values["knob.recompute_num_layers"] = whole(arguments.get("recompute_num_layers"))
    if arguments.get("deepspeed") == "True":
        stage = arguments.get("zero_stage", "")
        values["knob.zero_stage"] = int(stage) if stage in ("0", "1", "2", "3") else None
    elif (sharded := arguments.get("use_distributed_optimizer")) in ("True", "False"):
        values["knob.zero_stage"] = int(sharded == "True")
    if (narrow := arguments.get("grad_reduce_in_bf16")) in ("True", "False"):
        usual = "fp16" if arguments.get("fp16") == "True" else "fp32"
        values["knob.communication_data_type"] = "bf16" if narrow == "True" else usual
    if arguments.get("use_flash_attn") == "True":
        values["knob.attention"] = "flash"
    return {column: value for column, value in values.items() if value is not None}
