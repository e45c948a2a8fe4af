"""Communication: bytes and messages of each parallel group, over the link that it spans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.model.base import Array
from pretune.model.physics.memory import rank_parameters
from pretune.model.physics.setup import Flags, Setup, once

HIDDEN = 0.8  # assumed: the share of overlapped communication that compute can hide at most
STAGE0_BUCKET = 5e8  # elements that ZeRO-0 reduces at a time, whatever the knobs say


@dataclass(frozen=True)
class Traffic:
    """What one step moves on one rank: ring bytes, messages, and seconds on the wire and of latency (n,)."""

    bytes: Array
    messages: Array
    wire_s: Array
    latency_s: Array

    @property
    def seconds(self) -> Array:
        return self.wire_s + self.latency_s

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def group_bandwidth(setup: Setup, size: Array, stride: Array) -> Array:
    """(n,) bytes/s per rank in a ring over ``size`` ranks that are ``stride`` ranks apart.

    Ranks fill nodes in the order tp, cp, dp, pp (Narayanan et al. 2021, arXiv:2104.04473,
    section 3: tensor parallelism inside a node). A ring that leaves its node uses the links of
    all its members there, and is never faster than the links inside, where there are any.
    """
    members = np.clip(setup.local / stride, 1.0, size)
    inside = np.where(setup.local > 1, setup.intra_bytes_per_s, np.inf)
    crossing = np.minimum(inside, setup.inter_bytes_per_s * members)
    leaves = (size * stride > setup.local) & (setup.devices > setup.local)
    return np.where(leaves, crossing, setup.intra_bytes_per_s)


def ring(size: Array) -> Array:
    """Share of a tensor that each rank of a ring sends in a reduce-scatter or an all-gather;
    an all-reduce is both (Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002)."""
    return (size - 1) / size


def _traffic(setup: Setup, size: Array, stride: Array, moved: Array, messages: Array) -> Traffic:
    messages = np.where(size > 1, messages, 0.0)
    wire_s = moved / group_bandwidth(setup, size, stride)
    return Traffic(moved, messages, wire_s, messages * setup.latency_s)


@once
def persistent_parameters(setup: Setup) -> tuple[Array, Array]:
    """(n,), (n,) elements and number of the weights of a rank that ZeRO-3 keeps whole on every rank."""
    hidden, count = setup.hidden, setup.layers / setup.pp
    shapes = (  # elements, tensors of a layer
        (hidden * (hidden + 2 * setup.kv_size), 1.0),
        (hidden**2, 1.0),
        (hidden * setup.ffn, setup.mlp_matrices),
        (hidden, 2.0),  # norms
    )
    small = [(size <= setup.persistence) * count * tensors for size, tensors in shapes]
    elements = sum(number * size for number, (size, _) in zip(small, shapes, strict=True))
    return np.minimum(elements / setup.tp, rank_parameters(setup)), np.sum(small, axis=0)


def reduces_every_micro_step(setup: Setup) -> Flags:
    """(n,) gradients travel once per micro step: ZeRO-3, and ZeRO-2 as DeepSpeed 0.19.8 was seen to do it."""
    repeated: Flags = (setup.zero >= 3) | (setup.deepspeed & (setup.zero == 2))
    return repeated


def data_parallel_volumes(setup: Setup) -> tuple[Array, Array]:
    """(n,), (n,) ring volumes of a step, in weights of the rank: of gradients, of parameters.

    A volume is a reduce-scatter or an all-gather of every weight; an all-reduce is two. ZeRO-0:
    an all-reduce. ZeRO-1 and 2: reduce-scatter and all-gather, two in all (Rajbhandari et al.
    2020, arXiv:1910.02054, section 7). Observed with DeepSpeed 0.19.8: its default ZeRO-1 and
    ZeRO-2 issue a whole all-reduce and then a parameter all-gather, three volumes; ZeRO-2
    reduces at every micro step; use_multi_rank_bucket_allreduce: false reduces to the owner, one
    volume. ZeRO-3 reduces and gathers per micro step, and gathers again for the backward pass what was
    released in between (ibid., section 7.2.2); DeepSpeed releases only what lies further apart than its
    reuse distance, and gathers persistent weights once a step. Held against
    :func:`pretune.datasets.frameworks.zero.collectives` by a test.
    """
    zero, steps = setup.zero, setup.accumulation
    whole = np.where(zero < 3, ~setup.reduce_to_owner, setup.all_reduce_shards)
    whole = (zero == 0) | (setup.deepspeed & whole)
    gradients = np.where(whole, 2.0, 1.0) * np.where(reduces_every_micro_step(setup), steps, 1.0)
    weights = rank_parameters(setup)
    persistent = np.where(setup.deepspeed, persistent_parameters(setup)[0] / weights, 0.0)
    sharded = steps * (1 - persistent) * (1 + _released(setup))
    parameters = np.select([zero >= 3, zero >= 1], [persistent + sharded, np.ones_like(zero)], 0.0)
    return gradients, parameters


def _released(setup: Setup) -> Array:
    """(n,) share of the sharded weights that are gathered again for the backward pass. DeepSpeed keeps
    half of its reuse distance, since a weight is passed twice."""
    beyond = np.maximum(1 - setup.reuse_distance / 2 / rank_parameters(setup), 0.0)
    return np.where(setup.deepspeed, beyond, np.where(setup.keeps_weights, 0.0, 1.0))


@once
def data_parallel(setup: Setup) -> Traffic:
    """Gradients and parameters over the data-parallel group, in buckets.

    Hybrid sharding keeps this inside each copy of the states, and then all-reduces every rank's shard of the
    gradients over the copies (Zhao et al. 2023, arXiv:2304.11277, section 3.2.2). ZeRO-3's second copy of the
    weights serves the backward pass (hpZ: Wang et al. 2023, arXiv:2306.10209, section 3.2).
    """
    weights, zero, steps = rank_parameters(setup), setup.zero, setup.accumulation
    gradients, parameters = data_parallel_volumes(setup)
    copies = np.where(zero >= 1, setup.dp / setup.shard, 1.0)
    size, stride = setup.dp * setup.cp / copies, setup.tp
    kept, kept_tensors = persistent_parameters(setup)
    again = np.where(
        (setup.second_copy > 1) & (zero >= 3), steps * (1 - kept / weights) * _released(setup), 0.0
    )
    moved = (parameters - again) * setup.weight_element + gradients * setup.gradient_element
    moved = ring(size) * weights * moved
    # a weight larger than the bucket goes alone, so that there are never more messages than weights
    tensors = setup.layers / setup.pp * (setup.mlp_matrices + 4) + 2
    ddp = setup.ddp_bucket_bytes / setup.gradient_element
    stage0 = np.where(ddp > 0, ddp, STAGE0_BUCKET)
    bucket = np.where(zero == 0, stage0, setup.reduce_bucket)
    buckets = np.minimum(np.ceil(weights / bucket), tensors)
    reductions = np.where(reduces_every_micro_step(setup), steps, 1.0) * buckets
    units = setup.layers / setup.pp + 2  # and the embeddings and the output
    reductions = np.where(setup.by_layer & (zero >= 3), steps * units, reductions)
    fetches = np.minimum(1 + np.ceil((weights - kept) / setup.prefetch_bucket), tensors)
    gathers = np.select([zero >= 3, zero >= 1], [kept_tensors + steps * fetches, np.ones_like(zero)], 0.0)
    gathers = np.where(setup.by_layer & (zero >= 3), steps * units * (1 + _released(setup)), gathers)
    near = ring(setup.second_copy) * weights * again * setup.weight_element
    repeated = np.where(reduces_every_micro_step(setup), steps, 1.0)
    between = 2 * ring(copies) * weights / size * repeated * setup.gradient_element
    between = np.where(copies > 1, between, 0.0)
    return (
        _traffic(setup, size, stride, moved, reductions + gathers)
        + _traffic(setup, setup.second_copy, stride, near, np.zeros_like(size))
        + _traffic(setup, copies, stride * size, between, reductions)
    )


@once
def tensor_parallel(setup: Setup) -> Traffic:
    """Two all-reduces of the activations per layer forward, two backward (Shoeybi et al. 2019,
    arXiv:1909.08053, section 3), two more where the forward pass is run again."""
    calls = _split_calls(setup) * setup.layers / setup.pp * setup.accumulation
    moved = 2 * ring(setup.tp) * calls * setup.tokens * setup.hidden * setup.element
    return _traffic(setup, setup.tp, np.ones_like(setup.tp), moved, calls)


def _split_calls(setup: Setup) -> Array:
    return 4.0 + 2 * setup.recomputed


def tensor_parallel_exposed_s(setup: Setup, wire_s: Array, products_s: Array) -> Array:
    """(n,) seconds of ``wire_s`` that nothing hides: Megatron-LM sends the two of the backward pass while it
    computes the weights' gradients of the products that split columns (Korthikanti et al. 2022,
    arXiv:2205.05198, section 6), about half of a forward pass of ``products_s`` (n,)."""
    back = 2 / _split_calls(setup) * wire_s
    return np.where(setup.megatron_core, wire_s - np.minimum(HIDDEN * back, products_s / 2), wire_s)


def pipeline_parallel(setup: Setup) -> Traffic:
    """The activations of a micro batch to the next stage and their gradients back, once per virtual
    stage (Narayanan et al. 2021, arXiv:2104.04473, section 3.2). Each tensor-parallel rank sends its
    share, and the others' is gathered inside the node, in Megatron-LM (ibid., section 4.1) and
    DeepSpeed (0.19.8, runtime/pipe/engine.py, is_pipe_partitioned)."""
    calls = 2 * setup.vp * setup.accumulation * (setup.pp > 1)
    moved = calls * setup.tokens * setup.hidden * setup.element
    share = setup.sequence_parallel | setup.megatron | setup.deepspeed
    moved = np.where(share, moved / setup.tp, moved)
    return _traffic(setup, setup.pp, setup.tp * setup.cp * setup.dp, moved, calls)


def context_parallel(setup: Setup) -> Traffic:
    """Keys and values around the ring, forward once and backward twice (Liu et al. 2023,
    arXiv:2310.01889)."""
    calls = 3 * setup.layers / setup.pp * setup.accumulation
    size = 2 * setup.tokens * setup.kv_size / setup.tp * setup.element
    return _traffic(setup, setup.cp, setup.tp, calls * (setup.cp - 1) * size, calls * (setup.cp - 1))


def expert_parallel(setup: Setup) -> Traffic:
    """Tokens to their experts and back, forward and backward: four all-to-alls a layer
    (Lepikhin et al. 2020, arXiv:2006.16668, section 3)."""
    calls = 4 * setup.layers / setup.pp * setup.accumulation
    moved = calls * ring(setup.ep) * setup.tokens * setup.experts_per_token * setup.hidden * setup.element
    return _traffic(setup, setup.ep, setup.tp * setup.cp, moved, calls)


def exposed_s(setup: Setup, wire_s: Array, cover_s: Array) -> Array:
    """(n,) seconds of ``wire_s`` that compute of ``cover_s`` seconds does not hide."""
    hidden = np.where(setup.overlap, np.minimum(HIDDEN * wire_s, cover_s), 0.0)
    return wire_s - hidden
