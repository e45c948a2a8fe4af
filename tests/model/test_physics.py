"""The baseline obeys what is known: monotonicity, volumes, bubble, memory by stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.stated import Precision
from pretune.model import NoPhysics, TransformerPhysics
from pretune.model.physics import bubble, communication, memory
from pretune.model.physics.setup import read_setup
from pretune.model.physics.step import MEAN, NAMES, SD, read_parts, step_time
from pretune.tuner.space import Candidates

PHYSICS = TransformerPhysics()
GPU: dict[str, Any] = {
    "model.layers": 32,
    "model.hidden_size": 4096,
    "model.heads": 32,
    "model.vocabulary": 32_000,
    "workload.sequence_length": 4096,
    "workload.global_batch_tokens": 4096 * 512,
    "workload.precision": "bf16",
    "platform.devices_per_node": 8,
    "platform.nodes": 8,
    "platform.backend": "nccl",
    "peak_flops_per_s.bf16": 989e12,
    "accelerator.memory_bytes": 80_000_000_000,
    "accelerator.memory_bandwidth_bytes_per_s": 3.35e12,
    "intra_node.bandwidth_bytes_per_s": 450e9,
    "inter_node.bandwidth_bytes_per_s": 50e9,
    "framework": "deepspeed",
    "knob.micro_batch": 1,
    "knob.zero_stage": 1,
}

layouts = st.fixed_dictionaries(
    {
        "knob.micro_batch": st.sampled_from([1, 2, 4]),
        "knob.tp": st.sampled_from([1, 2, 8, 16]),
        "knob.pp": st.sampled_from([1, 2, 4]),
        "knob.zero_stage": st.sampled_from([0, 1, 2, 3]),
        "knob.activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "knob.reduce_bucket_size": st.sampled_from([10**6, 10**8, 10**9]),
        "platform.nodes": st.sampled_from([4, 8, 16]),
        "framework": st.sampled_from(["deepspeed", "megatron"]),
    }
)


def frame(*changes: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{**GPU, **change} for change in changes])


def speeds(*changes: dict[str, Any]) -> np.ndarray:
    return np.exp(PHYSICS.log_throughput(frame(*changes)))


@given(layouts, st.sampled_from(["intra_node", "inter_node"]), st.floats(1.0, 50.0))
def test_more_bandwidth_is_never_slower(layout: dict[str, Any], link: str, factor: float) -> None:
    name = f"{link}.bandwidth_bytes_per_s"
    slow, fast = speeds(layout, {**layout, name: GPU[name] * factor})
    assert fast >= slow * (1 - 1e-12)


@given(layouts, st.sampled_from(["peak_flops_per_s.bf16", "accelerator.memory_bandwidth_bytes_per_s"]))
def test_a_faster_device_is_faster(layout: dict[str, Any], name: str) -> None:
    slow, fast = speeds(layout, {**layout, name: GPU[name] * 2})
    assert fast > slow


@given(layouts)
def test_latency_costs_by_the_message(layout: dict[str, Any]) -> None:
    small = {**layout, "knob.zero_stage": 1, "framework": "deepspeed", "inter_node.latency_s": 1e-3}
    few, many = speeds(
        {**small, "knob.reduce_bucket_size": 10**9}, {**small, "knob.reduce_bucket_size": 10**6}
    )
    alone = read_setup(frame(small)).dp[0] <= 1
    assert many == few if alone else many < few


@given(layouts)
def test_a_higher_stage_holds_no_more_states(layout: dict[str, Any]) -> None:
    stages = frame(*({**layout, "knob.zero_stage": stage, "framework": "megatron"} for stage in range(4)))
    held = memory.states_bytes(read_setup(stages))
    assert (np.diff(held) <= 1e-6 * held[0]).all()


@given(layouts)
def test_checkpointing_trades_memory_for_time(layout: dict[str, Any]) -> None:
    stated = {**layout, "knob.attention": "eager"}
    kinds = [{**stated, "knob.activation_checkpointing": kind} for kind in ("none", "selective", "full")]
    held = memory.activation_bytes(read_setup(frame(*kinds)))
    rate = speeds(*kinds)
    assert held[0] >= held[1] > held[2]
    assert rate[0] >= rate[1] > rate[2]


def test_deepspeeds_zero_1_moves_half_as_much_again_as_zero_0() -> None:
    setup = read_setup(frame(*({"knob.zero_stage": stage} for stage in (0, 1))))
    moved = communication.data_parallel(setup).bytes
    assert moved[1] / moved[0] == pytest.approx(1.5)


def test_zero_2_reduces_at_every_micro_step_and_others_once() -> None:
    batch = {"workload.global_batch_tokens": 4096 * 64 * 4}
    setup = read_setup(frame(*({**batch, "knob.zero_stage": stage} for stage in (0, 1, 2))))
    assert setup.accumulation.tolist() == [4, 4, 4]
    gradients, parameters = communication.data_parallel_volumes(setup)
    assert gradients.tolist() == [2, 2, 8]
    assert parameters.tolist() == [0, 1, 1]


ON_THE_WIRE = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "reduce": 1.0}  # ring volumes
SHARDED = {"stage3_param_persistence_threshold": 0}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "knobs",
    [
        *({"zero_stage": stage, "micro_batch": micro} for stage in range(4) for micro in (1, 8)),
        {"zero_stage": 1, "use_multi_rank_bucket_allreduce": False},
        {"zero_stage": 2, "use_multi_rank_bucket_allreduce": False, "micro_batch": 2},
        {"zero_stage": 1, "use_multi_rank_bucket_allreduce": False, "reduce_scatter": False},
        {"zero_stage": 1, "communication_data_type": "bf16"},
        {"zero_stage": 3, "reduce_scatter": False, **SHARDED},
        {"zero_stage": 3, "reduce_scatter": False, "contiguous_gradients": False, **SHARDED},
        {"zero_stage": 3, "stage3_max_live_parameters": 50_000, **SHARDED},
        {"zero_stage": 3, "communication_data_type": "bf16", "micro_batch": 2, **SHARDED},
    ],
    ids=str,
)
def test_data_parallel_bytes_are_those_of_the_declared_collectives(
    knobs: dict[str, Any], precision: Precision
) -> None:
    """The framework's declaration is held against real ranks elsewhere; physics restates it for arrays."""
    model = ModelSpec(name="m", layers=8, hidden_size=1024, heads=8, vocabulary=8192, positions="rotary")
    batch = 16 * 4 * 512
    workload = Workload(model=model, sequence_length=512, global_batch_tokens=batch, precision=precision)
    platform = Platform(name="p", accelerator=Accelerator(name="cpu"), devices_per_node=4, backend="gloo")
    deepspeed = framework("deepspeed")
    resolved = deepspeed.resolve(workload, platform, Knobs(**{"micro_batch": 4} | knobs))
    declared = deepspeed.collectives(workload, platform, resolved)
    expected = sum(ON_THE_WIRE[each.op] * each.bytes for each in declared) * 3 / 4
    setup = read_setup(Candidates(workload, platform, "deepspeed", [resolved]).frame)
    # norms and biases are not in the physics
    assert communication.data_parallel(setup).bytes[0] == pytest.approx(expected, rel=0.02)


def test_a_link_that_does_not_exist_limits_nothing() -> None:
    """One device per node: there is no link inside, and the assumed one must not stand in."""
    alone = {"platform.devices_per_node": 1, "platform.nodes": 8, "intra_node.bandwidth_bytes_per_s": None}
    slow, fast = speeds(
        *({**alone, "inter_node.bandwidth_bytes_per_s": bandwidth} for bandwidth in (4e11, 8e11))
    )
    assert fast > slow


def test_other_frameworks_move_the_textbooks_volumes() -> None:
    setup = read_setup(frame(*({"knob.zero_stage": stage, "framework": "nanotron"} for stage in (0, 1))))
    moved = communication.data_parallel(setup).bytes
    assert moved[1] / moved[0] == pytest.approx(1.0)


def test_gloo_totals_match_the_logged_ones() -> None:
    """232,960 weights on two ranks: what DeepSpeed 0.19.8 was seen to issue, over a ring, in fp32."""
    tiny = {
        "model.layers": 1,
        "model.hidden_size": 128,
        "model.heads": 2,
        "model.vocabulary": 284,  # 12 x 128^2 + 284 x 128 = 232,960
        "workload.sequence_length": 64,
        "workload.global_batch_tokens": 64 * 2,
        "workload.precision": "fp32",
        "platform.devices_per_node": 2,
        "platform.nodes": 1,
        "platform.backend": "gloo",
    }
    setup = read_setup(frame(*({**tiny, "knob.zero_stage": stage} for stage in (0, 1, 3))))
    whole = 931_840
    # an all-reduce sends the whole tensor once per rank of two, an all-gather half of it
    assert communication.data_parallel(setup).bytes == pytest.approx([whole, 1.5 * whole, whole])


@given(st.integers(1, 16), st.integers(1, 4), st.integers(1, 64))
def test_bubble(stages: int, chunks: int, micro_batches: int) -> None:
    share = bubble.bubble_fraction(np.array(stages), np.array(chunks), np.array(micro_batches))
    assert share == pytest.approx((stages - 1) / (chunks * micro_batches))


def test_more_micro_batches_shrink_the_bubble() -> None:
    parts = read_parts(read_setup(frame({"knob.pp": 4}, {"knob.pp": 4, "knob.vp": 2}, {"knob.pp": 1})))
    assert parts.bubble[0] == pytest.approx(2 * parts.bubble[1])
    share = step_time(parts, MEAN)[1][:, NAMES.index("bubble")]
    assert share[0] > share[1] > share[2] == 0


@given(layouts, st.integers(0, 100))
def test_how_a_step_moves_with_its_constants_is_its_derivative(layout: dict[str, Any], seed: int) -> None:
    parts = read_parts(read_setup(frame({**layout, "knob.attention": None})))
    constants = MEAN + SD * np.random.default_rng(seed).normal(size=len(MEAN))
    _, slope = step_time(parts, constants)
    for i, name in enumerate(NAMES):
        nudge = 1e-5 * (np.arange(len(NAMES)) == i)
        between = step_time(parts, constants + nudge)[0] - step_time(parts, constants - nudge)[0]
        assert between / 2e-5 == pytest.approx(slope[:, i], abs=1e-6), name


def test_constants_are_found_again() -> None:
    """A cluster whose links are slow and whose host is slow: calibration sees it from its trials."""
    truth = TransformerPhysics({"tensor_parallel_across": 1.0, "launch": 2.0, "latency": 2.0})
    layouts = [
        {"knob.micro_batch": micro, "knob.tp": tp, "knob.pp": pp, "model.hidden_size": hidden}
        for micro in (1, 4)
        for tp in (1, 4, 16)
        for pp in (1, 4)
        for hidden in (512, 1024, 4096)
    ]
    table = frame(*layouts)
    trials = table.with_columns(tokens_per_s_per_device=np.exp(truth.log_throughput(table)))
    other = frame(*({**layout, "model.hidden_size": 8192} for layout in layouts))
    expected = truth.log_throughput(other)
    before = PHYSICS.log_throughput(other) - expected
    after = PHYSICS.calibrated(trials).log_throughput(other) - expected
    # a level that all trials share may be the stack's as well as the cluster's
    assert after.std() < before.std() / 3


def test_trials_on_one_node_leave_the_links_between_nodes_open() -> None:
    across = {"knob.tp": 16, "platform.nodes": 2}
    inside = [
        {"knob.tp": tp, "knob.micro_batch": m, "platform.nodes": 1} for tp in (1, 2, 8) for m in (1, 2, 4)
    ]
    table = frame(*inside)
    trials = table.with_columns(tokens_per_s_per_device=np.exp(PHYSICS.log_throughput(table)))
    known, before = (
        np.linalg.norm(physics.doubts(frame(*inside, across)), axis=1)
        for physics in (PHYSICS.calibrated(trials), PHYSICS)
    )
    # what all trials share may be the way they were measured
    assert (known[:-1] < 0.75 * before[:-1]).all()
    assert known[-1] > 1.5 * known[:-1].max()


def test_no_trials_no_news() -> None:
    assert PHYSICS.calibrated(frame({}).clear()).constants == PHYSICS.constants


def test_tensor_parallelism_across_nodes_pays_the_slow_link() -> None:
    slow = {"inter_node.bandwidth_bytes_per_s": 12.5e9}  # 100 Gbit/s per device
    inside, across = speeds({"knob.tp": 8, **slow}, {"knob.tp": 16, **slow})
    assert across < 0.5 * inside


def test_a_training_run_of_an_a100_cluster_is_near_what_was_published() -> None:
    """Narayanan et al. 2021 (arXiv:2104.04473), table 1: 145.6 B weights on 1536 A100, tensor and pipeline
    parallel by 8, batch 2304: 148 TFLOP/s per device, recomputation counted."""
    row = {
        "model.layers": 80,
        "model.hidden_size": 12288,
        "model.heads": 96,
        "model.vocabulary": 51_200,
        "workload.sequence_length": 2048,
        "workload.global_batch_tokens": 2304 * 2048,
        "platform.nodes": 192,
        "peak_flops_per_s.bf16": 312e12,
        "accelerator.memory_bandwidth_bytes_per_s": 2.039e12,
        "intra_node.bandwidth_bytes_per_s": 300e9,
        "inter_node.bandwidth_bytes_per_s": 25e9,
        "knob.tp": 8,
        "knob.pp": 8,
        "knob.micro_batch": 2,
        "knob.activation_checkpointing": "full",
        "knob.zero_stage": 0,
        "framework": "megatron",
    }
    flops_per_token = 8 * 80 * 12 * 12288**2  # with recomputation, attention and logits aside
    reached = speeds(row)[0] * flops_per_token
    assert 0.6 * 148e12 < reached < 1.5 * 148e12


@given(layouts)
def test_features_are_finite(layout: dict[str, Any]) -> None:
    features = PHYSICS.features(frame(layout))
    assert features.null_count().sum_horizontal().item() == 0
    assert np.isfinite(features.to_numpy()).all()
    assert all(dtype == pl.Float64 for dtype in features.dtypes)


def test_what_is_unknown_stays_null_and_never_nan() -> None:
    bare = frame({}).drop("intra_node.bandwidth_bytes_per_s", "inter_node.bandwidth_bytes_per_s")
    bare = bare.drop(
        "accelerator.memory_bytes", "peak_flops_per_s.bf16", "knob.micro_batch", "knob.zero_stage"
    )
    features = PHYSICS.features(bare)
    assert features["physics.log_peak_memory_over_capacity"].null_count() == 1
    assert features["physics.data_parallel_share_of_step"].null_count() == 1
    assert features.select(pl.all().is_nan().any()).transpose().to_series().fill_null(False).sum() == 0
    assert np.isfinite(PHYSICS.log_throughput(bare)).all()


def test_a_column_of_nulls_is_no_column() -> None:
    missing = frame({}).drop("knob.zero_stage", "knob.micro_batch")
    null = missing.with_columns(pl.lit(None).alias("knob.zero_stage"), pl.lit(None).alias("knob.micro_batch"))
    assert PHYSICS.log_throughput(null) == pytest.approx(PHYSICS.log_throughput(missing))
    assert PHYSICS.memory_bytes(null) == pytest.approx(PHYSICS.memory_bytes(missing))


def test_no_physics_says_nothing() -> None:
    table = frame({}, {})
    assert NoPhysics().log_throughput(table).tolist() == [0, 0]
    assert np.isnan(NoPhysics().memory_bytes(table)).all()
    assert NoPhysics().features(table).columns == []


def test_a_probe_goes_before_the_vendor_and_plain_sgd_has_no_moments() -> None:
    probed = {"fingerprint.copy_bytes_per_s": 1e12, "workload.optimizer": "adamw"}
    setup = read_setup(frame(probed, {**probed, "workload.optimizer": "sgd"}))
    assert setup.memory_bytes_per_s.tolist() == [1e12, 1e12]
    assert setup.optimizer_states.tolist() == [2, 0]
    weights = memory.rank_parameters(setup)[0]
    shards = setup.dp[0]
    held = memory.states_bytes(setup)
    assert held[0] - held[1] == pytest.approx(8 * weights / shards)


def test_torch_is_eager_and_its_fused_attention_is_not() -> None:
    names = ("torch", "eager", "sdpa", "TE + TorchSDPA", "flash_attention2")
    setup = read_setup(frame(*({"knob.attention": name} for name in names)))
    assert setup.fused_attention.tolist() == [False, False, True, True, True]


# -- what is unknown, and narrow formats ------------------------------------------------
@pytest.mark.parametrize("name", ["model.layers", "model.hidden_size", "workload.sequence_length"])
def test_without_its_size_a_model_has_no_predicted_time_and_no_made_up_feature(name: str) -> None:
    both = frame({}, {name: None})
    assert np.isnan(PHYSICS.log_throughput(both)).tolist() == [False, True]
    features = PHYSICS.features(both)
    assert features["physics.log_step_time_s"].is_null().to_list() == [False, True]
    assert not any(features[column].is_nan().any() for column in features.columns)


def test_a_vocabulary_that_nobody_states_is_assumed_in_the_physics_alone() -> None:
    said, unknown = PHYSICS.log_throughput(frame({"model.vocabulary": 50_000}, {"model.vocabulary": None}))
    assert said == unknown


def test_a_gate_makes_the_unstated_feed_forward_size_smaller_by_a_third() -> None:
    setup = read_setup(
        frame({}, {"model.gated_mlp": True}, {"model.gated_mlp": True, "model.ffn_size": 9000})
    )
    assert setup.ffn.tolist() == pytest.approx([4 * 4096, 8 * 4096 / 3, 9000])


def test_narrow_formats_run_on_the_units_of_their_width() -> None:
    peaks = {"peak_flops_per_s.fp8": 2e15, "peak_flops_per_s.fp4": 4e15}
    names = ["bf16", "fp8", "mxfp8", "fp4", "mxfp4", "nvfp4"]
    setup = read_setup(frame(*({"workload.precision": name, **peaks} for name in names)))
    rates = setup.matmul_flops_per_s / setup.matmul_flops_per_s[0]
    assert rates.tolist() == pytest.approx([1.0, *[2e15 / 989e12] * 2, *[4e15 / 989e12] * 3])
    assert setup.eight_bit.tolist() == [False, *[True] * 5]
    assert len(set(setup.attention_flops_per_s)) == len(set(setup.element)) == 1  # 16 bits in all of them
    (alone,) = read_setup(
        frame({"workload.precision": "nvfp4", "peak_flops_per_s.fp8": 2e15})
    ).matmul_flops_per_s
    assert alone == setup.matmul_flops_per_s[1]  # where the vendor gives none of four bits
