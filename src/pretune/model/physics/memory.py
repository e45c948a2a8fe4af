"""Peak memory of the fullest rank: states, activations, logits, buffers, context, by pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.model.base import Array
from pretune.model.physics.setup import Flags, Setup, once

# Assumed: what a process holds before its first tensor. Accelerator: context, communicator
# buffers, workspaces; CPU: the collectives' buffers, since its memory is counted after the imports.
CONTEXT_BYTES = (2.0e9, 4e7)
FRAGMENTATION = 1.05  # assumed: reserved over allocated
# 16-bit logits, their fp32 copy, its exponentials, and a gradient in fp32 and 16 bits; in fp32 three of these
LOGIT_BYTES = (16.0, 12.0)
# of tokens x hidden size, by both norms of a layer, each as its operations are written down: the input
# in fp32 and the normalised one in 16 bits, where a kernel keeps its 16-bit input
EAGER_NORM_BYTES = 8.0
STATED_SD = 0.45  # of the log of a factor: how far off what is counted may be
GUESSED_SD = 1.0  # ... where it is also open whether it is there at all


@dataclass(frozen=True)
class Kind:
    """Bytes that share a factor over what is counted here: its usual value, and the sd of its log."""

    usual: float = 1.0
    sd: float = STATED_SD


KINDS = {
    "weights": Kind(),  # and gradients
    "optimizer": Kind(),
    # the optimizer where nobody says whether it is sharded: one of the two, as if it were either
    "optimizer_if_whole": Kind(0.5, GUESSED_SD),
    "optimizer_if_sharded": Kind(0.5, GUESSED_SD),
    "activations_whole": Kind(),  # not split over tensor-parallel ranks: norms, dropouts, their inputs
    "activations_split": Kind(),
    "norms": Kind(),  # what norms without a kernel of their own keep beyond it
    "checkpoints": Kind(),
    "scores": Kind(),
    "logits": Kind(),
    # what gathering the split logits for the loss adds, where nobody says that the loss works on the parts
    "logits_if_gathered": Kind(0.2, GUESSED_SD),
    "buffers": Kind(),
    "context": Kind(),
}


@once
def layer_parameters(setup: Setup) -> Array:
    """(n,) matrix weights of one layer, all experts of one expert-parallel rank, before TP."""
    attention = 2 * setup.hidden**2 + 2 * setup.hidden * setup.kv_size
    mlp = setup.mlp_matrices * setup.hidden * setup.ffn
    held = np.where(setup.experts > 0, setup.experts / setup.ep, 1.0)
    return attention + mlp * held + setup.hidden * setup.experts


@once
def rank_parameters(setup: Setup) -> Array:
    """(n,) weights of a pipeline stage that has an embedding, on one rank, before ZeRO shards them."""
    return _parameters(setup, setup.layers / setup.pp)


def _parameters(setup: Setup, layers: Array) -> Array:
    tables = np.where(setup.pp > 1, 1.0, setup.embeddings) * setup.vocabulary * setup.hidden
    return (layers * layer_parameters(setup) + tables) / setup.tp


@once
def stage_layers(setup: Setup) -> tuple[Array, Array]:
    """(n,) each: layers of the first and of the last pipeline stage.

    nanotron shares out the weights of layers and output projection, and a stage ends with the block
    that exceeds its share (nanotron, models/base.py, build_model).
    """
    even = np.ceil(setup.layers / setup.pp)
    share = (setup.layers + setup.vocabulary * setup.hidden / layer_parameters(setup)) / setup.pp
    first = np.minimum(np.floor(share) + 1, setup.layers)
    last = np.maximum(setup.layers - np.floor(share * (setup.pp - 1)) - 1, 0.0)
    balanced = setup.nanotron & (setup.pp > 1)
    return np.where(balanced, first, even), np.where(balanced, last, even)


def _held_batches(setup: Setup) -> tuple[Array, Array]:
    """(n,) each: micro batches whose activations the first and the last stage hold.

    1F1B: min(p, m) on the first; interleaving 1 + (p - 1) / (p v) times as many (Korthikanti et al. 2022,
    section 4.2.3). On the last one, and all but one of v chunks p times (Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2).
    """
    interleaving = np.where(setup.vp > 1, 1 + (setup.pp - 1) / (setup.pp * setup.vp), 1.0)
    last = np.minimum(setup.accumulation, (setup.pp * (setup.vp - 1) + 1) / setup.vp)
    return np.minimum(setup.pp, setup.accumulation) * interleaving, last


def _states(setup: Setup, layers: Array) -> tuple[Array, Array]:
    """(n,) bytes of weights and gradients, and of the optimizer before it is sharded.

    Mixed precision: 2 + 2 + 12 bytes a weight (Adam); ZeRO-1 shards the 12, ZeRO-2 also the
    gradients, ZeRO-3 also the weights (Rajbhandari et al. 2020, arXiv:1910.02054, sections 3.1
    and 5). Megatron-LM and nanotron add up gradients in fp32: 4 in place of 2 (Megatron-LM,
    docs of the distributed optimizer; nanotron, optim/gradient_accumulator.py). In fp32 there
    is no master copy: 4 + 4 + 8, except under DeepSpeed's ZeRO, which clones its
    partition of the weights in any precision, and copies its gradients to fp32 for the step (DeepSpeed
    0.19.8, stage_1_and_2.py and stage3.py). ZeRO-3 gathers up to max_live_parameters.
    """
    weights = _parameters(setup, layers)
    partitioned = setup.deepspeed & (setup.zero >= 1)
    master = np.where(partitioned, 8.0, np.where(setup.element < 4, 4.0, 0.0))
    optimizer = np.where(setup.offload & ~setup.host, 0.0, master + 4 * setup.optimizer_states)
    gradients = weights * np.where(setup.megatron, 4.0, setup.element) / shards(setup, 2)
    live = np.minimum(weights, setup.live_parameters + 2 * layer_parameters(setup) / setup.tp)
    layer_or_all = np.where(setup.keeps_weights, weights, weights / setup.layers)
    gathered = np.where(setup.zero >= 3, np.where(setup.deepspeed, live, layer_or_all), 0.0)
    others = 1 - 1 / shards(setup, 3)  # what is gathered replaces one's own shard
    away = setup.offload_weights & (setup.zero >= 3) & ~setup.host
    own = np.where(away, 0.0, weights / shards(setup, 3))
    second = np.where((setup.second_copy > 1) & (setup.zero >= 3), weights / setup.second_copy, 0.0)
    held = gradients + setup.element * (own + second + gathered * others)
    return held, weights * optimizer


def states_bytes(setup: Setup) -> Array:
    """(n,) weights, gradients and optimizer states of the first stage, sharded as is stated."""
    held, optimizer = _states(setup, stage_layers(setup)[0])
    return held + optimizer / shards(setup, 1)


def shards(setup: Setup, stage: int) -> Array:
    """(n,) parts in which what ZeRO's ``stage`` shards is held."""
    return np.where(setup.zero >= stage, setup.shard * np.where(setup.context_shards, setup.cp, 1.0), 1.0)


@once
def _layer(setup: Setup) -> tuple[Array, Array, Array]:
    """(n,) bytes that one layer keeps of one micro batch: what tensor parallelism leaves whole, what it
    splits, and scores.

    Korthikanti et al. 2022, arXiv:2205.05198: eq. 1 (one rank), eq. 2 (tensor parallel) and eq. 4 (with
    sequence parallelism). Their counts are in 16-bit elements; the MLP's 19 s b h is theirs at ffn =
    4 h, scaled by ffn / h here. A gated MLP keeps two products, the function's output and the gated one:
    8 bytes; Megatron-LM's kernel of the last two (bias_swiglu_fusion) works the function out again.
    """
    unit = setup.tokens * setup.hidden * setup.element / 2
    ratio = setup.experts_per_token * setup.ffn / setup.hidden
    gated = np.where(setup.megatron_core & ~setup.nanotron, 6.0, 8.0)
    split = 8 + np.where(setup.mlp_matrices > 2, gated, 4.0) * ratio
    scores = 5 * setup.heads * setup.sequence / setup.hidden
    whole = np.where(setup.sequence_parallel, 10.0 / setup.tp, 10.0)
    return unit * whole, unit * split / setup.tp, unit * scores / setup.tp


def _activations(setup: Setup, held: Array) -> dict[str, Array]:
    """Kind -> (n,) bytes, where ``held`` (n,) layers' worth of micro batches are kept.

    Selective recomputation drops the scores (Korthikanti et al. 2022, eq. 6); full keeps a
    layer's input, 2 s b h, and one layer at work (their section 5); a part of the layers, or pieces of
    several, accordingly.
    """
    whole, split, scores = _layer(setup)
    inputs = setup.tokens * setup.hidden * setup.element
    inputs = np.where(setup.sequence_parallel, inputs / setup.tp, inputs)
    full = setup.recomputed > 0
    kept = np.where(full, setup.recomputed * setup.recompute_unit + (1 - setup.recomputed) * held, held)
    dropped = setup.fused_attention | (setup.selective_checkpointing & ~full)
    norms = setup.tokens * setup.hidden * np.where(setup.eager_norm, EAGER_NORM_BYTES, 0.0)
    return {
        "activations_whole": kept * whole,
        "norms": kept * norms / np.where(setup.sequence_parallel, setup.tp, 1.0),
        "activations_split": kept * split,
        "checkpoints": np.where(full, setup.recomputed * held * inputs / setup.recompute_unit, 0.0),
        "scores": np.where(dropped, 0.0, kept * scores),
    }


def activation_bytes(setup: Setup) -> Array:
    """(n,) activations at their peak on the first pipeline stage."""
    held = stage_layers(setup)[0] * _held_batches(setup)[0]
    return sum(_activations(setup, held).values(), np.zeros_like(held))


def _buffers(setup: Setup) -> Array:
    """(n,) DeepSpeed's buffer of gradients to reduce: its size counts elements, and overlap doubles it
    (DeepSpeed configuration reference, zero_optimization). Weights are gathered in place."""
    reduce = np.minimum(setup.reduce_bucket, rank_parameters(setup)) * (1.0 + setup.overlap)
    return np.where(setup.deepspeed & (setup.zero >= 1), setup.gradient_element * reduce, 0.0)


def terms(setup: Setup) -> Array:
    """(n, 2, k) bytes on the first and the last pipeline stage, by :data:`KINDS`; NaN for unknown models.

    The peak is the fuller stage's sum.
    """
    layers, batches = stage_layers(setup), _held_batches(setup)
    stages = [_stage(setup, layers[0], batches[0], setup.pp <= 1), _stage(setup, layers[1], batches[1], True)]
    return np.stack([np.column_stack([stage[kind] for kind in KINDS]) for stage in stages], axis=1)


def reported(setup: Setup, terms: Array) -> Array:
    """(n, 2, k) :func:`terms` of the stages that the framework's own figure covers: nanotron's is the
    first one's."""
    if not setup.nanotron.any():
        return terms
    return np.where(setup.nanotron[:, None, None], terms[:, :1], terms)


def _stage(setup: Setup, layers: Array, batches: Array, output: Flags | bool) -> dict[str, Array]:
    """Kind -> (n,) bytes; ``output``: whether the stage computes the logits."""
    held, optimizer = _states(setup, layers)
    logit = np.where(setup.element < 4, *LOGIT_BYTES)
    logits = np.where(output, setup.tokens * setup.vocabulary * logit, 0.0)
    unsure = ~setup.sharding_stated
    tensors = {
        "weights": held,
        "optimizer": np.where(unsure, 0.0, optimizer / shards(setup, 1)),
        "optimizer_if_whole": np.where(unsure, optimizer, 0.0),
        "optimizer_if_sharded": np.where(unsure, optimizer / setup.dp, 0.0),
        **_activations(setup, layers * batches),
        "logits": logits / setup.tp,
        "logits_if_gathered": np.where(setup.megatron | (setup.tp <= 1), 0.0, logits),
        "buffers": _buffers(setup),
    }
    context = np.where(setup.host, CONTEXT_BYTES[1], CONTEXT_BYTES[0])
    return {kind: FRAGMENTATION * size for kind, size in tensors.items()} | {"context": context}


def peak_bytes(terms: Array) -> Array:
    """(n,) all of the fuller stage's (n, 2, k) :func:`terms`, each kind by its usual factor."""
    usual = np.array([kind.usual for kind in KINDS.values()])
    return np.asarray((terms @ usual).max(axis=1))
