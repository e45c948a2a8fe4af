"""Peak memory of the fullest rank: states, activations, logits, buffers, context."""

from __future__ import annotations

import numpy as np

from pretune.model.base import Array
from pretune.model.physics.setup import Flags, Setup

# Assumed: what a process holds before its first tensor. Accelerator: context, communicator
# buffers, workspaces; CPU: the collectives' buffers, since its memory is counted after the imports.
CONTEXT_BYTES = (2.0e9, 4e7)
FRAGMENTATION = 1.05  # assumed: reserved over allocated


def layer_parameters(setup: Setup) -> Array:
    """(n,) matrix weights of one layer, all experts of one expert-parallel rank, before TP."""
    attention = 2 * setup.hidden**2 + 2 * setup.hidden * setup.kv_size
    mlp = setup.mlp_matrices * setup.hidden * setup.ffn
    held = np.where(setup.experts > 0, setup.experts / setup.ep, 1.0)
    return attention + mlp * held + setup.hidden * setup.experts


def rank_parameters(setup: Setup) -> Array:
    """(n,) weights of the first pipeline stage on one rank, before ZeRO shards them."""
    tables = np.where(setup.pp > 1, 1.0, setup.embeddings) * setup.vocabulary * setup.hidden
    return (setup.layers / setup.pp * layer_parameters(setup) + tables) / setup.tp


def states_bytes(setup: Setup) -> Array:
    """(n,) weights, gradients and optimizer states.

    Mixed precision: 2 + 2 + 12 bytes a weight (Adam); ZeRO-1 shards the 12, ZeRO-2 also the
    gradients, ZeRO-3 also the weights (Rajbhandari et al. 2020, arXiv:1910.02054, sections 3.1
    and 5). In fp32 there is no master copy: 4 + 4 + 8, except under DeepSpeed's ZeRO, which clones its
    partition of the weights in any precision, and copies its gradients to fp32 for the step (DeepSpeed
    0.19.8, stage_1_and_2.py and stage3.py). ZeRO-3 gathers up to max_live_parameters.
    """
    weights = rank_parameters(setup)
    partitioned = setup.deepspeed & (setup.zero >= 1)
    master = np.where(partitioned, 8.0, np.where(setup.element < 4, 4.0, 0.0))
    held = np.where(setup.offload & ~setup.host, 0.0, master + 4 * setup.optimizer_states)
    optimizer = weights * held / _shards(setup, 1)
    gradients = weights * setup.element / _shards(setup, 2)
    live = np.minimum(weights, setup.live_parameters + 2 * layer_parameters(setup) / setup.tp)
    gathered = np.where(setup.zero >= 3, np.where(setup.deepspeed, live, weights / setup.layers), 0.0)
    others = 1 - 1 / _shards(setup, 3)  # what is gathered replaces one's own shard
    return optimizer + gradients + setup.element * (weights / _shards(setup, 3) + gathered * others)


def _shards(setup: Setup, stage: int) -> Array:
    return np.where(setup.zero >= stage, setup.dp, 1.0)


def layer_activation_bytes(setup: Setup, keep_attention: Flags) -> Array:
    """(n,) what one layer keeps of one micro batch for its backward pass.

    Korthikanti et al. 2022, arXiv:2205.05198: eq. 1 (one rank), eq. 2 (tensor parallel) and eq. 4
    (with sequence parallelism), the last term only where attention keeps its scores. Their
    counts are in 16-bit elements; the MLP's 19 s b h is theirs at ffn = 4 h, scaled by ffn / h here.
    """
    unit = setup.tokens * setup.hidden * setup.element / 2
    ratio = setup.experts_per_token * setup.ffn / setup.hidden
    split = 8 + np.where(setup.mlp_matrices > 2, 6.0, 4.0) * ratio
    whole = 10.0
    scores = 5 * setup.heads * setup.sequence / setup.hidden * keep_attention
    shared = np.where(setup.sequence_parallel, whole / setup.tp, whole)
    return unit * (shared + (split + scores) / setup.tp)


def activation_bytes(setup: Setup) -> Array:
    """(n,) activations at their peak on the first pipeline stage.

    Selective recomputation drops the scores (Korthikanti et al. 2022, eq. 6); full keeps a
    layer's input, 2 s b h, and one layer at work (their section 5). 1F1B holds min(p, m) micro batches,
    interleaving 1 + (p - 1) / (p v) times as many (their section 4.2.3).
    """
    keep = ~(setup.fused_attention | setup.selective_checkpointing)
    layer = layer_activation_bytes(setup, keep)
    at_work = layer_activation_bytes(setup, ~setup.fused_attention)
    inputs = setup.tokens * setup.hidden * setup.element
    inputs = np.where(setup.sequence_parallel, inputs / setup.tp, inputs)
    interleaving = np.where(setup.vp > 1, 1 + (setup.pp - 1) / (setup.pp * setup.vp), 1.0)
    held = setup.layers / setup.pp * np.minimum(setup.pp, setup.accumulation) * interleaving
    return held * np.where(setup.full_checkpointing, inputs, layer) + np.where(
        setup.full_checkpointing, at_work, 0.0
    )


def logits_bytes(setup: Setup) -> Array:
    """(n,) logits of one micro batch, their fp32 copy and its gradient, on a stage that has them."""
    size = setup.tokens * setup.vocabulary / setup.tp * (setup.element + 8)
    return np.where(setup.pp > 1, 0.0, size)


def bucket_bytes(setup: Setup) -> Array:
    """(n,) DeepSpeed's buffer of gradients to reduce: its size counts elements, and overlap doubles it
    (DeepSpeed configuration reference, zero_optimization). Weights are gathered in place."""
    reduce = np.minimum(setup.reduce_bucket, rank_parameters(setup)) * (1.0 + setup.overlap)
    return np.where(setup.deepspeed & (setup.zero >= 1), setup.gradient_element * reduce, 0.0)


def peak_bytes(setup: Setup) -> Array:
    """(n,) all of it."""
    tensors = states_bytes(setup) + activation_bytes(setup) + logits_bytes(setup) + bucket_bytes(setup)
    context = np.where(setup.host, CONTEXT_BYTES[1], CONTEXT_BYTES[0])
    return FRAGMENTATION * tensors + context
