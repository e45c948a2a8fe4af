"""The configuration of torchtitan 0.2 that a configuration of FSDP becomes."""

from __future__ import annotations

import json
import math
from typing import Any

from pretune.datasets.knobs import Knobs
from pretune.datasets.workload import Workload

# knob -> key of [parallelism]
_PARALLELISM = {
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "reshard_after_forward": "fsdp_reshard_after_forward",
    "tp": "tensor_parallel_degree",
    "async_tp": "enable_async_tensor_parallel",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "cp_rotate_method": "context_parallel_rotate_method",
    "ep": "expert_parallel_degree",
    "expert_tp": "expert_tensor_parallel_degree",
}
_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp8": "bfloat16"}
_OPTIMIZERS = {"adamw": "AdamW"}  # torchtitan knows no SGD

Section = dict[str, Any]


def train_toml(workload: Workload, knobs: Knobs) -> str:
    """The sections that batch, layout and knobs decide; a job's own are the command's options.

    With a pipeline, a whole accumulation window is torchtitan's local batch, cut into micro batches.
    """
    told = knobs.settings()
    sections = {
        "training": _training(workload, told),
        "optimizer": {"name": _OPTIMIZERS[workload.optimizer], "implementation": told["optimizer_kernel"]},
        "parallelism": _parallelism(workload, told),
        "activation_checkpoint": {
            "mode": told["activation_checkpointing"],
            "selective_ac_option": "op" if told["selective_operations"] else str(told["selective_every"]),
        },
        "compile": {"enable": told["compile"]},
    }
    if told["precision"] == "fp8":
        sections |= {"model": {"converters": ["quantize.linear.float8"]}}
        sections |= {"quantize.linear.float8": _float8(told)}
    return "\n".join(_section(name, keys) for name, keys in sections.items())


def _training(workload: Workload, told: Section) -> Section:
    window = told["micro_batch"] * (told["accumulation"] if told["pp"] > 1 else 1)
    return {
        "local_batch_size": window,
        "global_batch_size": workload.global_batch_sequences,
        "seq_len": workload.sequence_length,
        "mixed_precision_param": _TYPES[told["precision"]],
        "enable_cpu_offload": told["offload_optimizer"] == "cpu",
    }


def _parallelism(workload: Workload, told: Section) -> Section:
    section = {key: told[name] for name, key in _PARALLELISM.items()}
    if told["pp"] > 1:
        section["pipeline_parallel_schedule"] = told["pipeline_schedule"]
        section["pipeline_parallel_microbatch_size"] = told["micro_batch"]
    if told["vp"] > 2:  # of a schedule with chunks there are two unless layers are counted
        stages = told["pp"] * told["vp"]
        section["pipeline_parallel_layers_per_stage"] = math.ceil((workload.model.layers + 2) / stages)
    return section


def _float8(told: Section) -> Section:
    if told["float8_recipe"] != "tensorwise":
        return {"recipe_name": told["float8_recipe"]}
    gather = told["float8_all_gather"]
    return {"enable_fsdp_float8_all_gather": gather, "precompute_float8_dynamic_scale_for_fsdp": gather}


def _section(name: str, keys: Section) -> str:
    """In TOML, which writes truth values, numbers, words and lists of words as JSON does."""
    return "".join([f"[{name}]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())])
