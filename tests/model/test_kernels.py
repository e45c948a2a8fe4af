"""What the kernels of a layer take, held against what was measured of one and against counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from pretune.model import TransformerPhysics
from pretune.model.physics import communication, flops, memory
from pretune.model.physics.setup import read_setup

# the 22 B model of Korthikanti et al. 2022 (arXiv:2205.05198), on eight A100
LAYER: dict[str, Any] = {
    "framework": "Megatron-LM",
    "model.layers": 48,
    "model.hidden_size": 6144,
    "model.heads": 64,
    "model.vocabulary": 51_200,
    "model.gated_mlp": False,
    "workload.sequence_length": 2048,
    "workload.precision": "fp16",
    "platform.backend": "nccl",
    "platform.devices_per_node": 8,
    "platform.nodes": 1,
    "peak_flops_per_s.bf16": 312e12,
    "accelerator.memory_bandwidth_bytes_per_s": 2.039e12,
    "intra_node.bandwidth_bytes_per_s": 300e9,
    "inter_node.bandwidth_bytes_per_s": 25e9,
    "knob.tp": 8,
    "knob.micro_batch": 4,
    "knob.accumulation": 1,
    "knob.attention": "eager",
    "knob.activation_checkpointing": "none",
    "knob.sequence_parallel": False,
}


def frame(*changes: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{**LAYER, **change} for change in changes])


def layer_s(**knobs: Any) -> float:
    """Seconds of one layer more."""
    rows = frame(*({**knobs, "model.layers": layers} for layers in (480, 960)))
    fewer, more = 4 * 2048 / 8 / np.exp(TransformerPhysics().log_throughput(rows))
    return float(more - fewer) / 480


@pytest.mark.parametrize(
    ("checkpointing", "sequence_parallel", "milliseconds"),
    [
        ("none", False, 19.6),
        ("none", True, 19.0),
        ("full", False, 27.2),
        ("selective", False, 20.9),
        ("selective", True, 20.3),
    ],
)
def test_a_layer_takes_what_was_measured(
    checkpointing: str, sequence_parallel: bool, milliseconds: float
) -> None:
    """Korthikanti et al. 2022, table 4: forward and backward of one layer."""
    said = layer_s(
        **{
            "knob.activation_checkpointing": checkpointing,
            "knob.sequence_parallel": sequence_parallel,
        }
    )
    assert said * 1e3 == pytest.approx(milliseconds, rel=0.08)


def test_recomputation_costs_what_was_measured() -> None:
    """Ibid.: 39 % more of all, 7 % of the attention alone."""
    none, full, selective = (
        layer_s(**{"knob.activation_checkpointing": kind}) for kind in ("none", "full", "selective")
    )
    assert full / none - 1 == pytest.approx(0.39, abs=0.06)
    assert selective / none - 1 == pytest.approx(0.07, abs=0.03)


def test_large_products_hide_their_operands_and_thin_ones_do_not() -> None:
    large, thin = read_setup(frame({})), read_setup(frame({"workload.sequence_length": 32}))
    for setup, least, most in ((large, 0.0, 0.02), (thin, 0.05, 3.0)):
        times = flops.layer_times(setup)
        assert least <= (times.operands / times.products)[0] < most


def test_half_a_wave_is_nothing_to_a_large_product_and_much_to_a_small_one() -> None:
    def over_flops(size: float) -> float:
        setup, one = read_setup(frame({})), np.array([size])
        computed, _ = flops.product_s(setup, setup.matmul_flops_per_s, one, one, one)
        return float(computed[0] * setup.matmul_flops_per_s[0] / (2 * size**3))

    assert over_flops(16_384) < 1.01
    assert over_flops(512) > 2


def test_megatron_hides_the_backward_passs_messages_and_its_deepspeed_fork_does_not() -> None:
    setup = read_setup(frame({}, {"framework": "Megatron-DeepSpeed"}))
    wire = np.ones(2)
    exposed = communication.tensor_parallel_exposed_s(setup, wire, np.full(2, 10.0))
    assert exposed == pytest.approx([1 - communication.HIDDEN / 2, 1.0])
    assert communication.tensor_parallel_exposed_s(setup, wire, np.zeros(2)) == pytest.approx(wire)


def test_a_stage_sends_a_tensor_parallel_ranks_share() -> None:
    stages = {"platform.nodes": 8, "knob.pp": 8}
    megatron, other = communication.pipeline_parallel(
        read_setup(frame(stages, {**stages, "framework": "another"}))
    ).bytes
    assert other == pytest.approx(8 * megatron)


def test_norms_without_a_kernel_keep_and_move_more() -> None:
    norms = frame({"knob.rmsnorm_kernel": True}, {"knob.rmsnorm_kernel": False})
    setup = read_setup(norms)
    kernel, eager = memory.activation_bytes(setup)
    assert eager - kernel == pytest.approx(48 * 8 * 2048 * memory.EAGER_NORM_BYTES * 6144 / 2)
    fast, slow = np.exp(TransformerPhysics().log_throughput(norms))
    assert slow < 0.95 * fast
