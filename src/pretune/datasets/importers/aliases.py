"""What other people's trackers call the columns of the store: one table of names, with their units.

A name is here only where it means one thing wherever it is used: ``batch_size`` (micro or global?),
``train_batch_size`` (DeepSpeed: global; Trainer: per device), ``max_length`` (of generation) and
``train_tokens_per_second`` (Trainer: of one process, or of all, by its options) are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from pretune.datasets.importers.complete import MEASURED, PRECISIONS, is_column
from pretune.datasets.stated import Precision


@dataclass(frozen=True)
class Alias:
    """A column by another name: the value times ``scale``, or one over it, or what ``words`` makes of it."""

    column: str
    scale: float = 1.0
    inverse: bool = False
    words: Mapping[str, str] = field(default_factory=dict)


_PLAIN = {
    "model.name": ("model_name_or_path", "_name_or_path", "model_name", "model_id"),
    "model.layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "model.hidden_size": ("hidden_size", "n_embd", "d_model"),
    "model.heads": ("num_attention_heads", "num_heads", "n_head", "n_heads"),
    "model.kv_heads": ("num_key_value_heads", "num_query_groups", "n_kv_heads", "kv_n_heads"),
    "model.ffn_size": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "model.vocabulary": ("vocab_size", "padded_vocab_size"),
    "model.max_positions": ("max_position_embeddings", "n_positions"),
    "model.tied_embeddings": ("tie_word_embeddings",),
    "model.experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "model.experts_per_token": ("num_experts_per_tok", "moe_router_topk"),
    "workload.sequence_length": (
        *("sequence_length", "seq_length", "seq_len", "max_seq_len", "max_seq_length", "block_size"),
        "context_length",
    ),
    "workload.global_batch_sequences": (
        *("global_batch_size", "global_train_batch_size", "total_train_batch_size"),
    ),
    "workload.global_batch_tokens": ("global_batch_tokens", "tokens_per_batch", "tokens_per_step"),
    "platform.devices": ("world_size", "num_processes", "num_devices"),
    "platform.nodes": ("num_nodes", "nnodes", "n_nodes"),
    "platform.devices_per_node": ("gpus_per_node", "num_gpus_per_node", "devices_per_node", "nproc_per_node"),
    "knob.micro_batch": (
        *("micro_batch", "micro_batch_size", "per_device_train_batch_size", "per_gpu_train_batch_size"),
        *("train_micro_batch_size_per_gpu", "device_train_microbatch_size"),
    ),
    "knob.accumulation": (
        *("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accumulation_steps"),
        "accumulation_steps",
    ),
    "knob.dp": ("dp", "dp_size", "data_parallel_size"),
    "knob.tp": ("tp", "tp_size", "tensor_parallel_size", "tensor_model_parallel_size"),
    "knob.pp": ("pp", "pp_size", "pipeline_parallel_size", "pipeline_model_parallel_size"),
    "knob.vp": ("vp", "virtual_pipeline_model_parallel_size"),
    "knob.cp": ("cp", "cp_size", "context_parallel_size"),
    "knob.ep": ("ep", "ep_size", "expert_parallel_size", "expert_model_parallel_size"),
    "knob.zero_stage": ("zero_stage", "zero_optimization/stage"),
    "knob.offload_optimizer": ("zero_optimization/offload_optimizer/device",),
    "knob.reduce_bucket_size": ("reduce_bucket_size",),
    "knob.allgather_bucket_size": ("allgather_bucket_size",),
    "knob.overlap_comm": ("overlap_comm",),
    "knob.attention": ("attn_implementation", "_attn_implementation"),
    "knob.compile": ("torch_compile",),
    "tokens_per_s": (
        *("tokens_per_second", "tokens_per_sec", "tokens_per_s", "tok_per_sec", "tokens/s", "tokens/sec"),
    ),
    "tokens_per_s_per_device": (
        *("tokens_per_second_per_gpu", "tokens_per_sec_per_gpu", "tokens_per_gpu_per_second"),
        *("tokens_per_second_per_device", "tokens_per_s_per_device", "tokens-per-second-per-gpu"),
        *("device/tokens_per_sec", "throughput(tps)"),  # Composer; torchtitan
    ),
    "samples_per_s": (
        *("samples_per_second", "samples_per_sec", "samples_per_s", "sequences_per_second"),
        *("train_samples_per_second", "samples/s", "samples/sec"),
    ),
    "step_time_s": (
        *("step_time_s", "step_time_sec", "time_per_step_s", "iteration_time_s", "time_per_iteration_s"),
        *("step_time_seconds", "train_step_timing in s"),
    ),
    "loss_last": ("loss", "lm loss", "reduced_train_loss"),
    "wall_s": ("train_runtime", "_runtime"),  # Trainer; W&B
}
_SCALED = {
    "step_time_s": {
        "step_time_ms": 1e-3,
        "iteration_time_ms": 1e-3,
        "time_per_step_ms": 1e-3,
        "iter_time_ms": 1e-3,
    },
    "peak_memory_reserved_bytes": {"max_reserved(gib)": 2.0**30},  # torchtitan
}
_INVERSE = {
    "step_time_s": ("steps_per_second", "steps_per_sec", "train_steps_per_second", "batches_per_sec"),
}
_FULL = {"true": "full", "false": "none"}
_PRECISIONS = {word: one for word, one in PRECISIONS.items() if one} | {
    word: word for word in get_args(Precision)
}
_WORDS = {
    "gradient_checkpointing": ("knob.activation_checkpointing", _FULL),
    "activation_checkpointing": (
        "knob.activation_checkpointing",
        {**_FULL, "none": "none", "selective": "selective", "full": "full"},
    ),
    "recompute_granularity": ("knob.activation_checkpointing", {"selective": "selective", "full": "full"}),
    # of a flag, only that it is on says anything
    "bf16": ("workload.precision", {"true": "bf16"}),
    "fp16": ("workload.precision", {"true": "fp16"}),
    "bf16/enabled": ("workload.precision", {"true": "bf16"}),
    "fp16/enabled": ("workload.precision", {"true": "fp16"}),
    "precision": ("workload.precision", _PRECISIONS),
    "mixed_precision": ("workload.precision", _PRECISIONS),
    "optim": ("workload.optimizer", {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd"}),
}
PAIRS: tuple[tuple[str, Alias], ...] = (
    *((name, Alias(column)) for column, names in _PLAIN.items() for name in names),
    *((name, Alias(column, scale)) for column, names in _SCALED.items() for name, scale in names.items()),
    *((name, Alias(column, inverse=True)) for column, names in _INVERSE.items() for name in names),
    *((name, Alias(column, words=words)) for name, (column, words) in _WORDS.items()),
)
ALIASES = dict(PAIRS)
FILLS = tuple(dict.fromkeys(alias.column for _, alias in PAIRS))

# they measure a step, but in which unit, or of what, is not said
UNITLESS = {
    *("step_time", "iteration_time", "iter_time", "time_per_step", "time_per_iteration", "elapsed_time"),
    *("throughput", "tps", "train_tokens_per_second"),
}
_OWN = ("model.", "workload.", "knob.", "platform.", "accelerator.", "counter.", "software.")
_NOT_TRAINING = re.compile(r"(eval|val|valid|validation|test|predict)([_-]|$)")
_SEPARATOR = re.compile(r"[/.]")


def lookup(name: str) -> Alias | None:
    """What a name means, by its longest known ending (``throughput/device/tokens_per_sec``); None if unknown.

    A column of the store means itself. What is of an evaluation means nothing here.
    """
    if (name.startswith(_OWN) or name in MEASURED) and is_column(name):
        return Alias(name)
    folded = name.strip().lower()
    if folded.startswith(("system/", "system.")):  # what MLflow and W&B read off the machine
        return Alias(f"counter.{name}")
    parts = _SEPARATOR.split(folded)
    if any(_NOT_TRAINING.match(part) for part in parts):
        return None
    endings = ("/".join(parts[first:]) for first in range(len(parts)))
    return next((ALIASES[ending] for ending in endings if ending in ALIASES), None)


def is_unitless(name: str) -> bool:
    """Whether a name measures a step without saying enough to be read."""
    parts = _SEPARATOR.split(name.strip().lower())
    return parts[-1] in UNITLESS and not any(_NOT_TRAINING.match(part) for part in parts)
