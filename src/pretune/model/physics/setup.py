"""What the formulas need, read once from a frame, with a documented assumption for every unknown.

Assumptions stay inside the physics: the knobs that trees see remain null where they are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.model.base import Array
from pretune.model.columns import numbers, text
from pretune.model.physics.sharding import recomputation, sharding

Flags = NDArray[np.bool_]
Found = TypeVar("Found")

EIGHT_BIT, FOUR_BIT = ("fp8", "mxfp8"), ("fp4", "mxfp4", "nvfp4")
NARROW = (*EIGHT_BIT, *FOUR_BIT)  # formats of products; weights and activations are kept in 16 bits
BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, **dict.fromkeys(NARROW, 2.0)}
A100_FLOPS_PER_S = 312e12  # NVIDIA A100 data sheet, bf16
# assumed: share of a vendor's link bandwidth that a collective reaches; all-reduce on an A100 moves some 235
# of 300 GB/s inside a node (NCCL tests), and nearly what a network card has between nodes
INSIDE_SHARE, BETWEEN_SHARE = 0.78, 0.9
# share of an A100's dense peak that the best of matrix products reach (S. Bekman, ML Engineering, maximum
# achievable matmul FLOPS); and, assumed, of a vendor's memory bandwidth that a kernel reaches
SUSTAINED, MEMORY_SHARE = 0.87, 0.87
BUCKET_ELEMENTS = 5e8  # DeepSpeed's default reduce_bucket_size
PREFETCH_ELEMENTS = 5e7  # ... stage3_prefetch_bucket_size
PERSISTENT_ELEMENTS = 1e5  # ... stage3_param_persistence_threshold
LIVE_PARAMETERS = 1e9  # ... stage3_max_live_parameters
# Assumed where neither a vendor's figure nor a probe says anything: accelerator, then CPU.
MATMUL_FLOPS_PER_S = (2e14, 5e10)
MEMORY_BYTES_PER_S = (2e12, 2e10)
INTRA_BYTES_PER_S = (2e11, 1e9)
INTER_BYTES_PER_S = (2.5e10, 1.2e8)
LATENCY_S = (2e-5, 3e-4)
# precision -> whose peak it has; the first that a vendor gives
_PEAKS = {
    **dict.fromkeys(FOUR_BIT, ("fp4", "fp8", "bf16")),
    **dict.fromkeys(EIGHT_BIT, ("fp8", "bf16")),
    "fp16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "tf32": ("tf32", "fp32"),
    "fp32": ("fp32", "tf32"),
}
HOST_BACKENDS = ("gloo", "mpi", "ccl")


@dataclass(frozen=True)
class Setup:
    """n rows resolved; every field is an array (n,), lengths in tokens or elements, sizes in bytes."""

    host: Flags  # a CPU platform: collectives by the CPU, nothing overlaps
    deepspeed: Flags
    layers: Array
    hidden: Array
    heads: Array
    kv_size: Array
    ffn: Array
    vocabulary: Array
    mlp_matrices: Array
    embeddings: Array
    experts: Array
    experts_per_token: Array
    sequence: Array
    devices: Array
    local: Array  # devices per node
    dp: Array
    tp: Array
    pp: Array
    vp: Array
    cp: Array
    ep: Array
    micro_batch: Array
    accumulation: Array
    zero: Array
    sequence_parallel: Flags
    recomputed: Array  # share of the layers that are recomputed whole
    recompute_unit: Array  # layers between two checkpoints
    selective_checkpointing: Flags
    fused_attention: Flags
    attention_stated: Flags
    eager_norm: Flags  # each operation of a norm by a kernel of its own, in fp32
    compiled: Flags
    overlap: Flags
    offload: Flags
    reduce_to_owner: Flags  # DeepSpeed reduces a bucket to the rank that owns it, instead of to all
    all_reduce_shards: Flags  # DeepSpeed all-reduces at ZeRO-3 where it would reduce-scatter
    element: Array  # bytes of an activation or a weight
    gradient_element: Array  # bytes of a gradient on the wire
    reduce_bucket: Array
    ddp_bucket_bytes: Array  # 0 where DistributedDataParallel does not train
    prefetch_bucket: Array
    persistence: Array
    live_parameters: Array
    shard: Array  # data-parallel ranks that share one copy of what is sharded
    context_shards: Flags  # ... and each one's context-parallel ranks do, too
    by_layer: Flags  # FSDP: gathers and reduces layer by layer
    second_copy: Array  # ranks that share ZeRO-3's second copy of the weights; 1: there is none
    keeps_weights: Flags  # gathered weights stay from the forward to the backward pass
    reuse_distance: Array  # elements within which ZeRO-3 keeps a gathered weight
    offload_weights: Flags
    weight_element: Array  # bytes of a weight that is gathered, on the wire
    sharding_stated: Flags  # whether the optimizer is sharded is known, not assumed
    megatron: Flags  # of Megatron-LM's kind: gradients add up in fp32, the loss is computed on split logits
    megatron_core: Flags  # ... and not of DeepSpeed's fork: communicates during the backward pass's products
    nanotron: Flags  # gives the pipeline's last stage fewer layers, and reports the first one's memory
    optimizer_states: Array  # fp32 moments per weight: two of Adam, none of plain SGD
    matmul_flops_per_s: Array
    attention_flops_per_s: Array  # and of logits: 16-bit where the layers' products are 8-bit
    eight_bit: Flags
    log_peak: Array  # of a vendor's 16-bit peak over an A100's, if larger; 0 where a probe measured the rate
    memory_bytes_per_s: Array
    memory_bytes: Array
    intra_bytes_per_s: Array
    inter_bytes_per_s: Array
    latency_s: Array

    @property
    def tokens(self) -> Array:
        """Tokens of one micro batch on one rank."""
        return self.micro_batch * self.sequence / self.cp


def once(formula: Callable[[Setup], Found]) -> Callable[[Setup], Found]:
    """A formula that many others rest on: worked out once for a setup, and kept with it."""

    @wraps(formula)
    def found(setup: Setup) -> Found:
        kept = vars(setup).setdefault("_once", {})  # beside the fields, which are frozen
        if found not in kept:
            kept[found] = formula(setup)
        value: Found = kept[found]
        return value

    return found


def read_setup(frame: pl.DataFrame) -> Setup:
    """Resolve a frame in the store's columns; NaN remains only where the model's shape is unknown."""
    host = _is(frame, "platform.backend", *HOST_BACKENDS)
    model, layout = _model(frame), _layout(frame)
    fields: dict[str, Any] = {
        **model,
        **layout,
        **sharding(frame, layout["dp"], layout["pp"]),
        **recomputation(frame, model["layers"] / (layout["pp"] * layout["vp"])),
        **_choices(frame),
        **_wire(frame, host),
        **_family(frame),
        **_rates(frame, host),
    }
    return Setup(host=host, **fields)


def _is(frame: pl.DataFrame, name: str, *values: str) -> Flags:
    """(n,) whether the column is one of ``values``; not where it is unknown."""
    return text(frame, name).is_in(list(values)).to_numpy()


def _positive(frame: pl.DataFrame, name: str, unknown: float | Array) -> Array:
    values = numbers(frame, name)
    return np.where(values > 0, values, unknown)


def _model(frame: pl.DataFrame) -> dict[str, Array]:
    hidden = _positive(frame, "model.hidden_size", np.nan)
    heads = _positive(frame, "model.heads", hidden / 128)
    experts = numbers(frame, "model.experts", 0.0)
    gated = numbers(frame, "model.gated_mlp", 0.0)
    # GPT's, and with a gate as many weights in three matrices as in two (Shazeer 2020, arXiv:2002.05202)
    usual_ffn = np.where(gated > 0, 8 / 3, 4.0) * hidden
    return {
        "layers": _positive(frame, "model.layers", np.nan),
        "hidden": hidden,
        "heads": heads,
        "kv_size": hidden * _positive(frame, "model.kv_heads", heads) / heads,
        "ffn": _positive(frame, "model.ffn_size", usual_ffn),
        "vocabulary": _positive(frame, "model.vocabulary", 50_000.0),
        "mlp_matrices": 2 + gated,
        "embeddings": 2 - numbers(frame, "model.tied_embeddings", 1.0),
        "experts": experts,
        "experts_per_token": np.where(experts > 0, _positive(frame, "model.experts_per_token", 1.0), 1.0),
        "sequence": _positive(frame, "workload.sequence_length", np.nan),
    }


def _layout(frame: pl.DataFrame) -> dict[str, Array]:
    """Degrees of parallelism default to 1; dp to what is left of the devices; the batch follows."""
    local = _positive(frame, "platform.devices_per_node", 1.0)
    devices = local * _positive(frame, "platform.nodes", 1.0)
    tp, pp, vp, cp, ep = (_positive(frame, f"knob.{name}", 1.0) for name in ("tp", "pp", "vp", "cp", "ep"))
    dp = _positive(frame, "knob.dp", np.maximum(devices / (tp * pp * cp), 1.0))
    sequence = _positive(frame, "workload.sequence_length", np.nan)
    share = np.maximum(_positive(frame, "workload.global_batch_tokens", sequence * dp) / (sequence * dp), 1.0)
    accumulation = numbers(frame, "knob.accumulation")
    micro_batch = _positive(frame, "knob.micro_batch", np.where(accumulation > 0, share / accumulation, 1.0))
    accumulation = np.where(accumulation > 0, accumulation, np.maximum(share / micro_batch, 1.0))
    return {
        "local": local,
        "devices": devices,
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "vp": vp,
        "cp": cp,
        "ep": ep,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
    }


def _choices(frame: pl.DataFrame) -> dict[str, Array | Flags]:
    """How it is computed, with the default that the framework has, or that is usual."""
    attention = text(frame, "knob.attention").str.to_lowercase()
    return {
        "zero": numbers(frame, "knob.zero_stage", 0.0),
        "sequence_parallel": _sequence_parallel(frame),
        "fused_attention": ~attention.str.contains(
            r"eager|\btorch\b|naive|math|softmax|unfused|^local$"
        ).to_numpy(),
        "attention_stated": (attention != "").to_numpy(),
        "eager_norm": numbers(frame, "knob.rmsnorm_kernel", 1.0) == 0,
        "compiled": numbers(frame, "knob.compile", 0.0) > 0,
        "offload": _is(frame, "knob.offload_optimizer", "cpu"),
        "element": _bytes(_precision(frame)),
        "optimizer_states": np.where(_is(frame, "workload.optimizer", "sgd"), 0.0, 2.0),
    }


def _family(frame: pl.DataFrame) -> dict[str, Array | Flags]:
    """What is known of a framework by its name."""
    name = text(frame, "framework").str.to_lowercase()
    default_is_known = name.str.contains(r"^deepspeed|^torch_ddp").to_numpy()
    return {
        "sharding_stated": np.isfinite(numbers(frame, "knob.zero_stage")) | default_is_known,
        "megatron": name.str.contains(r"megatron|nemo|nanotron").to_numpy(),
        "megatron_core": name.str.contains(r"^(megatron|nemo|nanotron)").to_numpy()
        & ~name.str.contains("deepspeed").to_numpy(),
        "nanotron": _nanotron(frame),
    }


def _nanotron(frame: pl.DataFrame) -> Flags:
    return text(frame, "framework").str.starts_with("nanotron").to_numpy()


def _sequence_parallel(frame: pl.DataFrame) -> Flags:
    """Where it is not stated, nanotron splits sequences (tp_mode REDUCE_SCATTER), others do not."""
    stated = numbers(frame, "knob.sequence_parallel")
    return np.where(np.isfinite(stated), stated > 0, _nanotron(frame))


def _wire(frame: pl.DataFrame, host: Flags) -> dict[str, Array | Flags]:
    """How it communicates. DeepSpeed overlaps at ZeRO-3 unless told otherwise, others by default."""
    deepspeed = text(frame, "framework", "deepspeed").str.starts_with("deepspeed").to_numpy()
    overlap = numbers(frame, "knob.overlap_comm")
    usual = np.where(deepspeed, numbers(frame, "knob.zero_stage") == 3, True)
    wire = text(frame, "knob.communication_data_type")
    scatter = numbers(frame, "knob.reduce_scatter", 1.0) > 0
    whole = _bytes(_precision(frame))

    def quantized(what: str) -> Flags:  # ZeRO++: 8 and 4 bits (Wang et al. 2023, arXiv:2306.10209, section 3)
        return numbers(frame, f"knob.zero_quantized_{what}", 0.0) > 0

    one_rank = numbers(frame, "knob.use_multi_rank_bucket_allreduce", 1.0) == 0
    return {
        "deepspeed": deepspeed,
        "overlap": np.where(np.isfinite(overlap), overlap > 0, usual) & ~host,
        "gradient_element": np.where(quantized("gradients"), 0.5, np.where(wire == "", whole, _bytes(wire))),
        "weight_element": np.where(quantized("weights"), 1.0, whole),
        "reduce_to_owner": one_rank & scatter,
        "all_reduce_shards": ~scatter & (numbers(frame, "knob.contiguous_gradients", 1.0) > 0),
        "reduce_bucket": _positive(frame, "knob.reduce_bucket_size", BUCKET_ELEMENTS),
        "ddp_bucket_bytes": numbers(frame, "knob.ddp_bucket_mb", 0.0) * 2**20,
        "prefetch_bucket": _positive(frame, "knob.stage3_prefetch_bucket_size", PREFETCH_ELEMENTS),
        "persistence": numbers(frame, "knob.stage3_param_persistence_threshold", PERSISTENT_ELEMENTS),
        "live_parameters": _positive(frame, "knob.stage3_max_live_parameters", LIVE_PARAMETERS),
    }


def _precision(frame: pl.DataFrame) -> pl.Series:
    knob = text(frame, "knob.precision")
    return knob.zip_with(knob != "", text(frame, "workload.precision", "bf16"))


def _bytes(precision: pl.Series) -> Array:
    return precision.replace_strict(BYTES, default=2.0, return_dtype=pl.Float64).to_numpy().astype(np.float64)


def _rates(frame: pl.DataFrame, host: Flags) -> dict[str, Array]:
    """What a probe measured goes before what a vendor states; what is known before what is assumed."""

    def assumed(pair: tuple[float, float]) -> Array:
        return np.where(host, pair[1], pair[0])

    local = _positive(frame, "platform.devices_per_node", 1.0)
    one_node = _positive(frame, "platform.nodes", 1.0) <= 1
    bus = _positive(frame, "fingerprint.allreduce_busbw_bytes_per_s", np.nan)
    inside = np.where(host, 1.0, INSIDE_SHARE) * numbers(frame, "intra_node.bandwidth_bytes_per_s")
    between = np.where(host, 1.0, BETWEEN_SHARE) * numbers(frame, "inter_node.bandwidth_bytes_per_s")
    intra = np.where(inside > 0, inside, assumed(INTRA_BYTES_PER_S))
    inter = np.where(between > 0, between, assumed(INTER_BYTES_PER_S))
    link = np.where(one_node, numbers(frame, "intra_node.latency_s"), numbers(frame, "inter_node.latency_s"))
    latency = _positive(frame, "fingerprint.allreduce_latency_s", link)
    stream = np.where(host, 1.0, MEMORY_SHARE) * numbers(frame, "accelerator.memory_bandwidth_bytes_per_s")
    memory = np.where(stream > 0, stream, assumed(MEMORY_BYTES_PER_S))
    precision = _precision(frame)
    eight_bit = precision.is_in(NARROW)
    wide = precision.replace(dict.fromkeys(NARROW, "bf16"))
    probed = _positive(frame, "fingerprint.matmul_bf16_flops_per_s", np.nan)
    peak = np.where(probed > 0, A100_FLOPS_PER_S, _positive(frame, "peak_flops_per_s.bf16", A100_FLOPS_PER_S))
    return {
        "matmul_flops_per_s": _matmul(frame, precision, assumed(MATMUL_FLOPS_PER_S)),
        "attention_flops_per_s": _matmul(frame, wide, assumed(MATMUL_FLOPS_PER_S)),
        "eight_bit": eight_bit.to_numpy(),
        "log_peak": np.where(host, 0.0, np.log(np.maximum(peak / A100_FLOPS_PER_S, 1.0))),
        "memory_bytes_per_s": _positive(frame, "fingerprint.copy_bytes_per_s", memory),
        "memory_bytes": _positive(frame, "accelerator.memory_bytes", np.nan),
        "intra_bytes_per_s": np.where(one_node & (bus > 0), bus, intra),
        # the probe's all-reduce runs over all devices, whose links into the next node add up
        "inter_bytes_per_s": np.where(~one_node & (bus > 0), bus / local, inter),
        "latency_s": np.where(latency > 0, latency, assumed(LATENCY_S)),
    }


def _matmul(frame: pl.DataFrame, precision: pl.Series, assumed: Array) -> Array:
    """Matrix FLOP/s at (n,) precisions: probed, else the sustained share of the vendor's peak."""
    rate = np.full(len(frame), np.nan)
    for name in precision.unique().to_list():
        peak = np.full(len(frame), np.nan)
        for units in reversed(_PEAKS.get(name, ())):
            peak = _positive(frame, f"peak_flops_per_s.{units}", peak)
        rate = np.where((precision == name).to_numpy(), SUSTAINED * peak, rate)
    narrow = precision.is_in(NARROW).to_numpy()
    half = narrow | precision.is_in(["bf16", "fp16"]).to_numpy()
    fp32 = numbers(frame, "fingerprint.matmul_fp32_flops_per_s")
    probed = np.where(half, numbers(frame, "fingerprint.matmul_bf16_flops_per_s"), fp32)
    probed = np.where(narrow & np.isfinite(rate), np.nan, probed)
    rate = np.where(probed > 0, probed, rate)
    return np.where(rate > 0, rate, np.where(fp32 > 0, fp32, assumed))
