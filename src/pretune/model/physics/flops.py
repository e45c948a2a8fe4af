"""Compute: matrix products, attention, and the memory traffic between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.model.base import Array
from pretune.model.physics.memory import rank_parameters, shards
from pretune.model.physics.setup import Setup

ATTENTION_SHARE = 0.5  # assumed: fused attention runs at half the rate of a large matrix product
KERNELS = 16.0  # assumed: kernels of one layer's forward pass
LAUNCH_S = 7e-6  # assumed: host time to launch one, Python included
KERNEL_S = 4e-6  # assumed: device time that one takes, however little it computes
# a product is cut into tiles, one to a multiprocessor at a time, and the last wave of tiles leaves half of
# them idle on average (NVIDIA, Matrix Multiplication Background User's Guide, tile and wave
# quantization): as if a result had this many elements more; an A100 has 108 multiprocessors
HALF_WAVE = 128 * 128 * 108 / 2
# times that eager attention takes its scores through memory: forward, one product writes them, softmax and
# dropout read and write them, the other product reads them; backward, the products' gradients read them three
# times and write them once, and softmax and dropout read two of them and write one
SCORES_FORWARD, SCORES_BACKWARD = 6.0, 10.0
# what a layer's kernels between the products read and write, forward and backward, counted for a GPT with
# fused kernels, in elements of tokens x hidden size: norms, dropouts and residual sums; copies of heads; and
# the activation function, by its width
WHOLE = np.array([11.0, 19.0])
COPIES = np.array([4.0, 8.0])
EAGER_NORMS = np.array([32.0, 58.0])  # more, where the operations of both norms run one by one, in fp32
FUNCTION, GATED_FUNCTION = np.array([2.0, 3.0]), np.array([3.0, 5.0])
HOST_LINK_BYTES_PER_S = 2.5e10  # assumed: PCIe 4 x16, one way
# per weight: gradient and master read, master written; each moment read and written; fp32
STEP_BYTES, MOMENT_BYTES = 12.0, 8.0


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one layer for one micro batch on one rank, (n,) each: of one forward pass, and how many
    passes a step makes of it; or of all passes.

    A backward pass counts as two of its products (Kaplan et al. 2020, arXiv:2001.08361, section 2.1),
    recomputation as another forward pass (Korthikanti et al. 2022, arXiv:2205.05198, section
    5), selective recomputation as one of the attention only.
    """

    products: Array
    operands: Array  # what their operands' way through memory adds
    attention: Array
    kernels: Array
    launch: Array
    passes: Array
    attention_passes: Array
    scores: Array  # what eager attention takes through memory, all passes
    activations: Array  # what the kernels between products do, all passes

    @property
    def backward_s(self) -> Array:
        """(n,) seconds of its backward pass, during which gradients can travel."""
        device = (self.passes - 1) * (self.products + self.operands + self.attention)
        return np.maximum(device + 2 / 3 * self.activations, (self.passes - 1) * self.launch)


def product_s(
    setup: Setup,
    rate: Array,
    rows: Array,
    columns: Array,
    inner: Array,
    copies: Array | float = 1.0,
) -> tuple[Array, Array]:
    """Seconds of a (rows x inner) by (inner x columns) product, with ``copies`` weight matrices: of its
    2 m n k FLOPs and half a wave at the ``rate`` of a large one; and what its operands' way through
    memory adds to them.

    The roofline of Williams et al. 2009 (doi 10.1145/1498765.1498785), with a rounded ridge: the root of
    the sum of squares. Rounded up to tiles of 64, the smallest that keep matrix units full.
    """
    wave = np.where(setup.host, 0.0, HALF_WAVE)
    computed = 2 * (rows * _tiles(setup, columns) + wave) * _tiles(setup, inner) / rate
    moved = setup.element * (rows * (inner + columns) + copies * inner * columns)
    return computed, added(moved / setup.memory_bytes_per_s, computed)


def added(hidden_s: Array, by_s: Array) -> Array:
    """(n,) seconds that work adds to other work that it runs beside: nearly none where it is much less."""
    return np.hypot(hidden_s, by_s) - by_s


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
    full = setup.recomputed
    selective = np.where(setup.selective_checkpointing, 1.0, 0.0)
    return LayerTimes(
        products=sum((computed for computed, _ in products), np.zeros_like(tokens)),
        operands=sum((moved for _, moved in products), np.zeros_like(tokens)),
        attention=_attention_s(setup),
        kernels=np.where(setup.host, 0.0, KERNELS * KERNEL_S) * np.ones_like(tokens),
        launch=np.full_like(tokens, KERNELS * LAUNCH_S),
        passes=3.0 + full,
        attention_passes=3.5 + full + selective,
        scores=_scores_s(setup, 1 + full + selective),
        activations=_activations_s(setup, 1 + full),
    )


def _scores_s(setup: Setup, forward: Array) -> Array:
    """(n,) of ``forward`` forward passes and a backward one."""
    size = setup.element * setup.heads / setup.tp * setup.tokens * setup.sequence
    return (SCORES_FORWARD * forward + SCORES_BACKWARD) * size / setup.memory_bytes_per_s


def _activations_s(setup: Setup, forward: Array) -> Array:
    """(n,) of ``forward`` forward passes and a backward one."""
    width = setup.experts_per_token * setup.ffn / setup.hidden
    function = np.where(setup.mlp_matrices[:, None] > 2, GATED_FUNCTION, FUNCTION) * width[:, None]
    whole = WHOLE + EAGER_NORMS * setup.eager_norm[:, None]
    whole = whole / np.where(setup.sequence_parallel, setup.tp, 1.0)[:, None]
    elements = whole + (COPIES + function) / setup.tp[:, None]
    passes = elements[:, 0] * forward + elements[:, 1]
    size = setup.element * setup.tokens * setup.hidden * np.where(setup.compiled, 0.6, 1.0)
    return np.asarray(passes * size / setup.memory_bytes_per_s)


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


def accumulate_s(setup: Setup, products_s: Array) -> Array:
    """(n,) seconds a micro batch spends adding its gradients beside ``products_s`` (n,), the products that
    make them: read, read and written; by Megatron-LM inside the products, which read and write fp32
    (Megatron-LM, gradient_accumulation_fusion)."""
    apart = 3 * setup.element * rank_parameters(setup) / setup.memory_bytes_per_s
    inside = 8.0 * rank_parameters(setup) / setup.memory_bytes_per_s
    return np.where(setup.megatron, added(inside, products_s), apart)


def optimizer_s(setup: Setup) -> Array:
    """(n,) seconds of the optimizer step: its states through memory once, sharded from ZeRO-1 on.

    Offloaded, gradients and weights also cross the host link (Rajbhandari et al. 2020,
    arXiv:1910.02054, section 5 for what is sharded; the rates are assumptions).
    """
    shard = rank_parameters(setup) / shards(setup, 1)
    step = (STEP_BYTES + MOMENT_BYTES * setup.optimizer_states) * shard / setup.memory_bytes_per_s
    link = np.where(setup.host, setup.memory_bytes_per_s, HOST_LINK_BYTES_PER_S)
    crossing = 2 * setup.element * shard / link
    uses = np.where(setup.offload_weights & (setup.zero >= 3), setup.accumulation, 0.0)  # twice a micro batch
    step = step + uses * crossing
    return step + np.where(setup.offload, crossing + np.where(setup.host, 0.0, 4 * step), 0.0)
