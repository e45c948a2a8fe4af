"""DeepSpeed's configuration as columns of the store: shared by its logs and its autotuner's results."""

from __future__ import annotations

from typing import Any

from pretune.datasets.importers.lines import counts

# key of zero_optimization -> knob, by its name and by older ones
_ZERO_COUNTS = {
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "stage3_prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold": "stage3_param_persistence_threshold",
    "stage3_max_live_parameters": "stage3_max_live_parameters",
    # as the engine prints them
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
}
_ZERO_FLAGS = (
    *("overlap_comm", "reduce_scatter", "allgather_partitions", "contiguous_gradients"),
    "use_multi_rank_bucket_allreduce",
)
_BATCH = {
    "train_batch_size": "workload.global_batch_sequences",
    "train_micro_batch_size_per_gpu": "knob.micro_batch",
    "gradient_accumulation_steps": "knob.accumulation",
}
FILLS = (
    *(f"knob.{name}" for name in (*dict.fromkeys(_ZERO_COUNTS.values()), *_ZERO_FLAGS)),
    *_BATCH.values(),
    *("knob.zero_stage", "knob.offload_optimizer", "workload.precision", "workload.optimizer"),
)


def from_config(config: dict[str, Any]) -> dict[str, Any]:
    """What a ``ds_config.json`` states; "auto" states nothing."""
    values = counts(_BATCH, config)
    zero = config.get("zero_optimization")
    values |= from_zero(zero) if isinstance(zero, dict) else {}
    precision = [name for name, keys in _PRECISIONS.items() if any(_enabled(config.get(key)) for key in keys)]
    if precision:
        values["workload.precision"] = precision[0]
    optimizer = config.get("optimizer")
    kind = optimizer.get("type") if isinstance(optimizer, dict) else None
    values |= from_optimizer(kind)
    return values


_PRECISIONS = {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16",)}


def _enabled(section: Any) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True


def from_optimizer(kind: Any) -> dict[str, str]:
    name = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}.get(str(kind).lower())
    return {"workload.optimizer": name} if name else {}


def from_zero(zero: dict[str, Any]) -> dict[str, Any]:
    """What a ``zero_optimization`` section states."""
    values: dict[str, Any] = {}
    if str(zero.get("stage")) in ("0", "1", "2", "3"):
        values["knob.zero_stage"] = int(zero["stage"])
    values |= {f"knob.{knob}": count for knob, count in counts(_ZERO_COUNTS, zero).items()}
    for key in _ZERO_FLAGS:
        if str(zero.get(key)).lower() in ("true", "false"):
            values[f"knob.{key}"] = str(zero[key]).lower() == "true"
    offload = zero.get("offload_optimizer")
    if isinstance(offload, dict) and offload.get("device") in ("cpu", "none"):
        values["knob.offload_optimizer"] = offload["device"]
    return values
