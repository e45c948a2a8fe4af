"""Who holds which part of the states, and how much is recomputed, in the words of each framework."""

from __future__ import annotations

import numpy as np
import polars as pl

from pretune.model.base import Array
from pretune.model.columns import numbers, text

REUSE_DISTANCE = 1e9  # DeepSpeed's default stage3_max_reuse_distance, in elements


def sharding(frame: pl.DataFrame, dp: Array, pp: Array) -> dict[str, Array]:
    """What of :class:`~pretune.model.physics.setup.Setup` says who shares what, from (n,) rows.

    Where nothing is stated all data-parallel ranks share one copy. Context-parallel ranks hold
    different shards in Megatron-LM (docs of the distributed optimizer) and in torchtitan (its FSDP mesh
    is dp_shard x cp), as far as their stage is stated.
    """
    name = text(frame, "framework").str.to_lowercase()
    shard = numbers(frame, "knob.dp_shard")
    reshard = text(frame, "knob.reshard_after_forward").to_numpy()
    weights = text(frame, "knob.offload_param").to_numpy()
    return {
        "shard": np.where(shard > 0, np.minimum(shard, dp), dp),
        "context_shards": name.is_in(["fsdp", "megatron"]).to_numpy(),
        "by_layer": (name == "fsdp").to_numpy(),
        "second_copy": np.maximum(numbers(frame, "knob.zero_hpz_partition_size", 1.0), 1.0),
        "keeps_weights": (reshard == "never") | ((reshard == "default") & (pp > 1)),
        "reuse_distance": numbers(frame, "knob.stage3_max_reuse_distance", REUSE_DISTANCE),
        "offload_weights": weights == "cpu",
    }


def recomputation(frame: pl.DataFrame, chunk: Array) -> dict[str, Array]:
    """The share of layers that are recomputed whole, and the layers between two checkpoints.

    ``chunk`` (n,): layers of a pipeline stage's model chunk, of which Megatron-LM's "block" recomputes
    recompute_num_layers; its "uniform" recomputes all, in pieces of so many. torchtitan's
    selective recomputation is of every selective_every-th layer, unless it is by operation.
    """
    kind = text(frame, "knob.activation_checkpointing").to_numpy()
    full, selective = kind == "full", kind == "selective"
    count = np.maximum(numbers(frame, "knob.recompute_num_layers", 1.0), 1.0)
    block = full & (text(frame, "knob.recompute_method") == "block").to_numpy()
    every = numbers(frame, "knob.selective_every")
    layers = selective & (every > 0) & (numbers(frame, "knob.selective_operations", 0.0) == 0)
    some = np.where(layers, 1 / np.where(every > 0, every, 1.0), np.minimum(count / chunk, 1.0))
    return {
        "recomputed": np.where(block | layers, some, np.where(full, 1.0, 0.0)),
        "recompute_unit": np.where(full & ~block, count, 1.0),
        "selective_checkpointing": selective & ~layers,
    }
