"""Compute: matrix products, attention, and the memory traffic between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.model.base import Array
from pretune.model.physics.memory import layer_activation_bytes, rank_parameters
from pretune.model.physics.setup import Setup

ATTENTION_SHARE = 0.5  # assumed: fused attention runs at half the rate of a large matrix product
KERNELS = 16.0  # assumed: kernels of one layer's forward pass
LAUNCH_S = 7e-6  # assumed: host time to launch one, Python included
SCORE_PASSES = 4.0  # assumed: times that eager attention takes its scores through memory, each way
HOST_LINK_BYTES_PER_S = 2.5e10  # assumed: PCIe 4 x16, one way
# per weight: gradient and master read, master written; each moment read and written; fp32
STEP_BYTES, MOMENT_BYTES = 12.0, 8.0


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one layer's forward pass for one micro batch on one rank, (n,) each, and how many
    passes a step makes of it: a backward pass counts as two of its products (Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1), recomputation as another forward pass (Korthikanti et al.
    2022, arXiv:2205.05198, section 5), selective recomputation as one of the attention only.
    """

    products: Array
    operands: Array  # their operands, once through memory
    attention: Array
    scores: Array  # what eager attention takes through memory
    activations: Array  # what a layer keeps, once through memory
    launch: Array
    passes: Array
    attention_passes: Array

    @property
    def backward_s(self) -> Array:
        """(n,) seconds of its backward pass, during which gradients can travel."""
        return (self.passes - 1) * np.maximum(
            self.products + self.operands + self.attention + self.activations, self.launch
        )


def product_s(
    setup: Setup,
    rate: Array,
    rows: Array,
    columns: Array,
    inner: Array,
    copies: Array | float = 1.0,
) -> tuple[Array, Array]:
    """Seconds of a (rows x inner) by (inner x columns) product, with ``copies`` weight matrices: of its
    2 m n k FLOPs at the sustained ``rate``, and of its operands once through memory.

    Their sum is the roofline of Williams et al. 2009 (doi 10.1145/1498765.1498785) without overlap,
    so that thin shapes saturate smoothly. Rounded up to tiles of 64, the smallest that keep
    matrix units full.
    """
    flops = 2 * rows * _tiles(setup, columns) * _tiles(setup, inner)
    moved = setup.element * (rows * (inner + columns) + copies * inner * columns)
    return flops / rate, moved / setup.memory_bytes_per_s


def _tiles(setup: Setup, size: Array) -> Array:
    return np.where(setup.host, size, 64 * np.ceil(size / 64))


def layer_times(setup: Setup) -> LayerTimes:
    tokens, hidden, tp = setup.tokens, setup.hidden, setup.tp
    routed, rate = tokens * setup.experts_per_token, setup.matmul_flops_per_s
    held = np.maximum(setup.experts / setup.ep, 1.0)
    products = (
        product_s(setup, rate, tokens, (hidden + 2 * setup.kv_size) / tp, hidden),
        product_s(setup, rate, tokens, hidden, hidden / tp),
        product_s(setup, rate, routed, (setup.mlp_matrices - 1) * setup.ffn / tp, hidden, held),
        product_s(setup, rate, routed, hidden, setup.ffn / tp, held),
    )
    scores = SCORE_PASSES * setup.element * setup.heads / tp * tokens * setup.sequence
    kept = layer_activation_bytes(setup, keep_attention=~setup.fused_attention)
    full = np.where(setup.full_checkpointing, 1.0, 0.0)
    return LayerTimes(
        products=sum((flops for flops, _ in products), np.zeros_like(tokens)),
        operands=sum((moved for _, moved in products), np.zeros_like(tokens)),
        attention=_attention_s(setup),
        scores=scores / setup.memory_bytes_per_s,
        activations=kept * np.where(setup.compiled, 0.6, 1.0) / setup.memory_bytes_per_s,
        launch=np.full_like(tokens, KERNELS * LAUNCH_S),
        passes=3.0 + full,
        attention_passes=3.5 + full + np.where(setup.selective_checkpointing, 1.0, 0.0),
    )


def _attention_s(setup: Setup) -> Array:
    """Scores and values, 4 b s^2 h FLOPs forward (Narayanan et al. 2021, arXiv:2104.04473, appendix),
    of which fused kernels skip the half that the causal mask hides."""
    flops = 4 * setup.tokens * setup.sequence * setup.hidden / setup.tp
    flops = flops * np.where(setup.fused_attention, 0.5, 1.0)
    return flops / (ATTENTION_SHARE * setup.attention_flops_per_s)


def logits_s(setup: Setup) -> tuple[Array, Array]:
    """(n,), (n,) seconds of the output layer and its loss for one micro batch, forward and backward: of
    their products, and of what they take through memory."""
    size = setup.vocabulary / setup.tp
    products, operands = product_s(setup, setup.attention_flops_per_s, setup.tokens, size, setup.hidden)
    softmax = 20.0 * setup.tokens * size / setup.memory_bytes_per_s  # fp32 logits, five passes
    return 3 * products, 3 * operands + softmax


def accumulate_s(setup: Setup) -> Array:
    """(n,) seconds a micro batch spends adding its gradients: read, read, write, fp32."""
    return 12.0 * rank_parameters(setup) / setup.memory_bytes_per_s


def optimizer_s(setup: Setup) -> Array:
    """(n,) seconds of the optimizer step: its states through memory once, sharded from ZeRO-1 on.

    Offloaded, gradients and weights also cross the host link (Rajbhandari et al. 2020,
    arXiv:1910.02054, section 5 for what is sharded; the rates are assumptions).
    """
    shard = rank_parameters(setup) / np.where(setup.zero >= 1, setup.dp, 1.0)
    step = (STEP_BYTES + MOMENT_BYTES * setup.optimizer_states) * shard / setup.memory_bytes_per_s
    link = np.where(setup.host, setup.memory_bytes_per_s, HOST_LINK_BYTES_PER_S)
    crossing = 2 * setup.element * shard / link
    return step + np.where(setup.offload, crossing + np.where(setup.host, 0.0, 4 * step), 0.0)
