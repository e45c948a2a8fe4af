"""Hybrid sharding, second copies, offload and partial recomputation: what the physics makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from pretune.datasets import Accelerator, Knobs, Platform, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.platform import Link
from pretune.datasets.presets import model
from pretune.model import TransformerPhysics
from pretune.model.physics import communication
from pretune.model.physics.setup import read_setup
from pretune.tuner.space import Candidates

PHYSICS = TransformerPhysics()
JOB = Workload(model=model("llama-2-7b"), sequence_length=4096, global_batch_tokens=4096 * 512)
GPU = Accelerator(name="gpu", memory_bytes=80 * 2**30, memory_bandwidth_bytes_per_s=3.35e12)
CLUSTER = Platform(name="cluster", accelerator=GPU, devices_per_node=8, nodes=8, backend="nccl")


def frame(name: str, *settings: dict[str, Any], platform: Platform = CLUSTER) -> pl.DataFrame:
    one = framework(name)
    asked = [Knobs(**{"micro_batch": 1} | each) for each in settings]
    resolved = [one.resolve(JOB, platform, knobs, own_script=True) for knobs in asked]
    return Candidates(JOB, platform, name, resolved).frame


def memory(name: str, *settings: dict[str, Any]) -> list[float]:
    return PHYSICS.memory_bytes(frame(name, *settings)).tolist()


def seconds(name: str, *settings: dict[str, Any]) -> list[float]:
    return (-PHYSICS.log_throughput(frame(name, *settings))).tolist()


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("fsdp", {"reshard_after_forward": "always"}),
        ("fsdp", {"reshard_after_forward": "never"}),
        ("fsdp", {"reshard_after_forward": "always", "dp_shard": 8}),
        ("fsdp", {"reshard_after_forward": "never", "dp_shard": 2, "tp": 4}),
        ("megatron", {"zero_stage": 0}),
        ("megatron", {"zero_stage": 1, "tp": 4}),
        ("megatron", {"zero_stage": 1, "communication_data_type": "bf16", "overlap_comm": True}),
        ("deepspeed", {"zero_stage": 3, "zero_quantized_weights": True, "zero_quantized_gradients": True}),
        ("deepspeed", {"zero_stage": 3, "stage3_max_reuse_distance": 1_000_000}),
    ],
    ids=str,
)
def test_data_parallel_bytes_are_those_of_the_declared_collectives(name: str, knobs: dict[str, Any]) -> None:
    rows = frame(name, knobs)
    one = framework(name)
    resolved = one.resolve(JOB, CLUSTER, Knobs(**{"micro_batch": 1} | knobs), own_script=True)
    copies = int(resolved.settings().get("dp_replicate", 1))
    size = (resolved.dp or 1) // copies
    expected = 0.0
    for each in one.collectives(JOB, CLUSTER, resolved):
        ranks = copies if each.op == "all_reduce" and copies > 1 else size
        volumes = 2 if each.op == "all_reduce" else 1
        expected += volumes * each.bytes * (ranks - 1) / ranks
    assert communication.data_parallel(read_setup(rows)).bytes[0] == pytest.approx(expected, rel=0.01)


def test_states_are_shared_by_the_ranks_of_a_copy() -> None:
    """12 bytes of optimizer, 2 of gradients and 2 of weights, shared by 8 or by 64."""
    whole, hybrid = memory("fsdp", {}, {"dp_shard": 8})
    assert hybrid - whole == pytest.approx(16 * JOB.model.parameters * (1 / 8 - 1 / 64) * 1.05, rel=0.03)
    plain, sharded = memory("megatron", {"cp": 2}, {"cp": 2, "zero_stage": 1})
    states = 12 * JOB.model.parameters * 1.05
    assert plain - sharded == pytest.approx(states * (1 - 1 / 64), rel=0.03)  # cp shares them too


def test_a_second_copy_in_each_node_pays_where_nodes_are_far_apart() -> None:
    slow = CLUSTER.model_copy(update={"inter_node": Link(bandwidth_bytes_per_s=5e9)})
    deepspeed = {"zero_stage": 3, "stage3_max_reuse_distance": 1_000_000}
    second = deepspeed | {"zero_hpz_partition_size": 8}
    speed = PHYSICS.log_throughput(frame("deepspeed", deepspeed, second, platform=slow))
    assert speed[1] > speed[0]
    without, held = memory("deepspeed", deepspeed, second)
    assert held - without == pytest.approx(2 * JOB.model.parameters / 8 * 1.05, rel=0.03)


def test_weights_that_stay_gathered_cost_memory_and_save_traffic() -> None:
    always, never = (
        frame("fsdp", {"reshard_after_forward": "always"}),
        frame("fsdp", {"reshard_after_forward": "never"}),
    )
    assert PHYSICS.memory_bytes(never)[0] > PHYSICS.memory_bytes(always)[0] + JOB.model.parameters
    sent = [communication.data_parallel(read_setup(each)).bytes[0] for each in (always, never)]
    assert sent[1] < sent[0]


def test_offloaded_weights_free_the_device_and_cross_the_link() -> None:
    knobs = {"zero_stage": 3}
    here, away = memory("deepspeed", knobs, knobs | {"offload_param": "cpu"})
    assert here - away == pytest.approx(2 * JOB.model.parameters / 64 * 1.05, rel=0.05)
    quick, slow = seconds("deepspeed", knobs, knobs | {"offload_param": "cpu"})
    assert slow > quick


def test_recomputing_some_layers_lies_between_none_and_all() -> None:
    full = {"activation_checkpointing": "full"}
    some = full | {"recompute_method": "block", "recompute_num_layers": 8}
    layouts = ({"pp": 2} | each for each in ({}, some, full, full | {"recompute_num_layers": 4}))
    layouts = list(layouts)
    none_b, some_b, full_b, pieces_b = memory("megatron", *layouts)
    none_s, some_s, full_s, pieces_s = seconds("megatron", *layouts)
    assert full_b < pieces_b < some_b < none_b
    assert none_s < some_s < full_s == pieces_s
    every, half, alike = memory(
        "fsdp", {"selective_every": 1}, {"selective_every": 2}, {"activation_checkpointing": "full"}
    )
    assert every == alike < half


def test_what_is_not_stated_is_as_before() -> None:
    """Columns that are missing and columns that say the default give the same."""
    told = frame("deepspeed", {"zero_stage": 3})
    defaults = {
        "zero_hpz_partition_size": 1, "stage3_max_reuse_distance": 10**9, "offload_param": "none",
        "zero_quantized_weights": False, "dp_shard": 64, "recompute_num_layers": 1,
    }  # fmt: skip
    stated = told.with_columns(pl.lit(value).alias(f"knob.{name}") for name, value in defaults.items())
    assert np.array_equal(PHYSICS.log_throughput(told), PHYSICS.log_throughput(stated))
    assert np.array_equal(PHYSICS.memory_bytes(told), PHYSICS.memory_bytes(stated))
