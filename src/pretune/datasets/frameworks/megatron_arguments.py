"""The argument list of Megatron-LM that a configuration becomes.

What is at Megatron-LM's own default is left out where older versions do not know the option.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.workload import ModelSpec, Workload

# knob -> option that takes its value
_VALUES = {
    "micro_batch": "--micro-batch-size",
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
}
# knob -> option of a switch that is off by default
_SWITCHES = {
    "sequence_parallel": "--sequence-parallel",
    "overlap_comm": "--overlap-grad-reduce",
    "overlap_param_gather": "--overlap-param-gather",
    "tp_comm_overlap": "--tp-comm-overlap",
    "cross_entropy_loss_fusion": "--cross-entropy-loss-fusion",
}
_PRECISIONS = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp8": ("--bf16", "--fp8-format", "hybrid"),
    "mxfp8": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),
}
_POSITIONS = {"rotary": "rope", "learned": "learned_absolute"}
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}

Argument = tuple[KnobValue, ...]


def argument_list(workload: Workload, knobs: Knobs) -> str:
    """One option to a line, with its value; as a shell reads it (``$(cat megatron.args)``)."""
    told = knobs.settings()
    arguments = [
        *_model(workload.model, workload.sequence_length, told),
        *_batch_and_layout(workload, told),
        *((option,) for name, option in _SWITCHES.items() if told[name]),
        *_data_parallel(told),
        *_compute(workload, told),
    ]
    return "".join(shlex.join(map(str, argument)) + "\n" for argument in arguments)


def _model(model: ModelSpec, length: int, told: dict[str, KnobValue]) -> Iterator[Argument]:
    yield "--num-layers", model.layers
    yield "--hidden-size", model.hidden_size
    yield "--num-attention-heads", model.heads
    yield "--ffn-hidden-size", model.ffn_size
    yield "--seq-length", length
    yield "--max-position-embeddings", max(model.max_positions, length)
    yield "--position-embedding-type", _POSITIONS[model.positions]
    yield "--normalization", _NORMS[model.norm]
    yield ("--disable-bias-linear",)
    if model.gated_mlp:
        yield ("--swiglu",)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    if model.kv_heads != model.heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", model.kv_heads
    if model.experts:
        yield from _experts(model, told)


def _experts(model: ModelSpec, told: dict[str, KnobValue]) -> Iterator[Argument]:
    yield "--num-experts", model.experts
    yield "--moe-router-topk", model.experts_per_token
    yield "--moe-ffn-hidden-size", model.ffn_size
    yield "--moe-token-dispatcher-type", told["moe_token_dispatcher"]
    if told["expert_tp"] != told["tp"]:
        yield "--expert-tensor-parallel-size", told["expert_tp"]
    if told["moe_grouped_gemm"]:
        yield ("--moe-grouped-gemm",)


def _batch_and_layout(workload: Workload, told: dict[str, KnobValue]) -> Iterator[Argument]:
    yield "--global-batch-size", workload.global_batch_sequences
    for name, option in _VALUES.items():
        yield option, told[name]
    if told["vp"] != 1:
        yield "--num-virtual-stages-per-pipeline-rank", told["vp"]
        if not told["overlap_p2p_comm"]:
            yield ("--no-overlap-p2p-communication",)
    if told["cp"] != 1 and told["cp_comm_type"] != "p2p":
        yield "--cp-comm-type", told["cp_comm_type"]


def _data_parallel(told: dict[str, KnobValue]) -> Iterator[Argument]:
    if told["zero_stage"]:
        yield ("--use-distributed-optimizer",)
    if told["overlap_comm"]:  # else gradients are one bucket
        yield "--ddp-bucket-size", told["reduce_bucket_size"]
    if told["communication_data_type"] == "bf16":
        yield ("--grad-reduce-in-bf16",)
    if told["offload_optimizer"] == "cpu":
        yield ("--optimizer-cpu-offload",)
        yield ("--use-precision-aware-optimizer",)  # whose code it runs


def _compute(workload: Workload, told: dict[str, KnobValue]) -> Iterator[Argument]:
    if precision := _PRECISIONS[str(told["precision"])]:
        yield precision
    yield "--optimizer", "adam" if workload.optimizer == "adamw" else "sgd"
    if told["attention"] != "auto":
        yield "--attention-backend", told["attention"]
    if told["activation_checkpointing"] != "none":
        yield "--recompute-granularity", told["activation_checkpointing"]
    if told["activation_checkpointing"] == "full":
        yield "--recompute-method", told["recompute_method"]
        yield "--recompute-num-layers", told["recompute_num_layers"]
