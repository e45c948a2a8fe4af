"""A step's time from its parts, and the constants that say how long each part really takes.

    step = m (stage (1 + bubble)) + once a step
    stage = (device^p + launch^p)^(1/p) + latency

over m micro batches: host and device work side by side, so that the longer of the two decides, the
more sharply the larger p; a message's latency is waited for. Each part is its nominal time, from
first principles, times the exponential of a constant; a constant is 0 where nothing else is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.model.base import Array
from pretune.model.physics import communication, flops
from pretune.model.physics.bubble import bubble_fraction
from pretune.model.physics.setup import Setup

STEP_OVERHEAD_S = 0.02  # assumed: what a step costs whatever it computes
GROUP, DEVICES = 4.0, 16.0  # sizes of a tensor-parallel group and a cluster that growth is counted from

# name -> (mean, standard deviation) of what is believed of a constant before any trial, natural logs.
# First principles give the large terms to some 20 %, links to a factor of 1.6, and of latencies,
# launches and the host's part little more than that they exist.
DEVICE = {
    "products": (0.0, 0.2),
    "operand_traffic": (0.0, 0.3),
    "attention": (0.0, 0.5),
    "score_traffic": (0.0, 0.5),
    "activation_traffic": (0.0, 0.4),
    "kernels": (0.0, 0.4),
    "loss_traffic": (0.0, 0.4),
    "gradient_accumulation": (0.0, 0.4),
    "tensor_parallel_inside": (0.0, 0.3),
    "tensor_parallel_across": (0.0, 0.5),
    "context_parallel": (0.0, 0.5),
    "expert_parallel": (0.0, 0.5),
}
ONCE = {
    "data_parallel_inside": (0.0, 0.5),
    "data_parallel_across": (0.0, 0.5),
    "data_parallel_messages": (0.0, 1.0),
    "pipeline_parallel": (0.0, 0.5),
    "optimizer": (0.0, 0.7),
    "step_overhead": (0.0, 1.0),
}
OTHER = {
    # the share of its peak that a product reaches falls with the peak: measured maxima of matrix products are
    # 87 % on an A100, 80 % on an H100, 78 % on a B200 (S. Bekman, ML Engineering, maximum achievable
    # matmul FLOPS), and clocks fall further under a training load
    "peak_decline": (0.1, 0.1),
    "eight_bit": (0.25, 0.3),  # casts and scales of 8-bit products
    "step_overhead_growth": (0.0, 0.3),  # an exponent, with devices
    "unstated_attention": (-1.0, 1.0),  # the eager share, where the attention kernel is not stated
    "launch": (0.5, 1.0),
    "sharpness": (float(np.log(4.0)), 0.4),
    "bubble": (0.0, 0.15),
    "latency": (0.0, 2.0),
    "latency_group_growth": (0.0, 1.0),  # exponents, with the group's size and the cluster's
    "latency_devices_growth": (0.0, 0.5),
    "latency_pipelined": (0.0, 1.5),
    "latency_across": (0.0, 1.0),
}
CONSTANTS = {**DEVICE, **ONCE, **OTHER}
NAMES = tuple(CONSTANTS)
MEAN: Array = np.array([mean for mean, _ in CONSTANTS.values()])
SD: Array = np.array([sd for _, sd in CONSTANTS.values()])
_AT = {name: i for i, name in enumerate(NAMES)}


@dataclass(frozen=True)
class Parts:
    """Nominal seconds of n rows.

    ``device`` (n, a): of one micro batch on the slowest stage, in the order of :data:`DEVICE`; ``faster``
    (n, 2): what "peak_decline" and "eight_bit" multiply; ``unstated`` (n,): scores of attention that may be
    eager. ``once`` (n, b): of a step, in the order of :data:`ONCE`. ``growth`` (n, 4): what latency grows
    with, as far as logs of "latency_..." say.
    """

    device: Array
    faster: Array
    unstated: Array
    once: Array
    launch: Array
    latency: Array
    growth: Array
    micro_batches: Array
    bubble: Array

    def __getitem__(self, at: NDArray[np.bool_]) -> Parts:
        return Parts(**{name: values[at] for name, values in vars(self).items()})


def read_parts(setup: Setup) -> Parts:
    """Every part of a step, at its nominal speed. A stage's micro batch is its layers, and the logits."""
    layer, layers = flops.layer_times(setup), setup.layers / setup.pp
    logits, loss = flops.logits_s(setup)
    tensor, expert, context = (
        kind(setup)
        for kind in (
            communication.tensor_parallel,
            communication.expert_parallel,
            communication.context_parallel,
        )
    )
    across = setup.tp > setup.local
    each = 1 / setup.accumulation
    split = communication.tensor_parallel_exposed_s(setup, tensor.wire_s * each, layers * layer.products)
    scores = layers * layer.scores
    # selective recomputation says that there are scores to drop, unless a fused kernel is stated
    eager = ~setup.fused_attention | (setup.selective_checkpointing & ~setup.attention_stated)
    device = {
        "products": layers * layer.passes * layer.products + logits,
        "operand_traffic": layers * layer.passes * layer.operands,
        "attention": layers * layer.attention_passes * layer.attention,
        "score_traffic": scores * eager,
        "activation_traffic": layers * layer.activations,
        "kernels": layers * layer.passes * layer.kernels,
        "loss_traffic": loss,
        "gradient_accumulation": flops.accumulate_s(setup, layers * layer.products),
        "tensor_parallel_inside": np.where(across, 0.0, split),
        "tensor_parallel_across": np.where(across, split, 0.0),
        "context_parallel": communication.exposed_s(setup, context.wire_s * each, layers * layer.backward_s),
        "expert_parallel": expert.wire_s * each,
    }
    data = communication.data_parallel(setup)
    exposed = data_parallel_exposed_s(setup)[1]
    leaves = setup.dp * setup.cp * setup.tp > setup.local
    once = {
        "data_parallel_inside": np.where(leaves, 0.0, exposed),
        "data_parallel_across": np.where(leaves, exposed, 0.0),
        "data_parallel_messages": data.latency_s,
        "pipeline_parallel": communication.pipeline_parallel(setup).seconds,
        "optimizer": flops.optimizer_s(setup),
        "step_overhead": np.full_like(layers, STEP_OVERHEAD_S),
    }
    assert (tuple(device), tuple(once)) == (tuple(DEVICE), tuple(ONCE))
    growth = (np.log(setup.tp / GROUP), np.log(setup.devices / DEVICES), 1.0 * (setup.pp > 1), 1.0 * across)
    return Parts(
        device=np.column_stack(list(device.values())),
        # logits are 16-bit products whatever the layers' are
        faster=np.column_stack([setup.log_peak, setup.eight_bit * (1 - logits / device["products"])]),
        unstated=np.where(setup.attention_stated | eager, 0.0, scores),
        once=np.column_stack(list(once.values())),
        launch=layers * layer.passes * layer.launch,
        latency=(tensor.latency_s + expert.latency_s + context.latency_s) * each,
        growth=np.column_stack(growth),
        micro_batches=setup.accumulation,
        bubble=bubble_fraction(setup.pp, setup.vp, setup.accumulation),
    )


def data_parallel_exposed_s(setup: Setup) -> tuple[Array, Array]:
    """(n,), (n,) nominal seconds on the wire of a step's gradients and parameters, and of those that the
    backward pass does not hide."""
    wire_s, layers = communication.data_parallel(setup).wire_s, setup.layers / setup.pp
    repeated = np.where(communication.reduces_every_micro_step(setup), setup.accumulation, 1.0)
    cover_s = repeated * layers * flops.layer_times(setup).backward_s
    return wire_s, communication.exposed_s(setup, wire_s, cover_s)


def step_time(parts: Parts, constants: Array) -> tuple[Array, Array]:
    """(n,) log seconds of a step, and (n, c) how it moves with each of the ``constants`` (c,).

    Of the parts that are times, that is their share of the step; shares add up to 1.
    """
    value = {name: constants[i] for name, i in _AT.items()}
    a, b, log_devices = len(DEVICE), len(ONCE), parts.growth[:, 1]
    device = parts.device * np.exp(constants[:a])
    decline = np.exp(value["peak_decline"] * parts.faster[:, 0])
    device[:, _AT["products"]] *= decline * np.exp(value["eight_bit"] * parts.faster[:, 1])
    device[:, _AT["attention"]] *= decline
    unstated = parts.unstated * np.exp(value["score_traffic"] + value["unstated_attention"])
    device[:, _AT["score_traffic"]] += unstated
    once = parts.once * np.exp(constants[a : a + b])
    once[:, -1] *= np.exp(value["step_overhead_growth"] * log_devices)
    launch = parts.launch * np.exp(value["launch"])
    growth = constants[[_AT[n] for n in NAMES if n.startswith("latency_")]]
    latency = parts.latency * np.exp(value["latency"] + parts.growth @ growth)

    p, work = np.exp(value["sharpness"]), device.sum(axis=1)
    longer = np.maximum(work, launch)
    powers = np.column_stack([work, launch]) / longer[:, None]
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(powers, 1e-300))
    powers = powers**p
    both = powers.sum(axis=1)
    busy = longer * both ** (1 / p)
    weight = powers / both[:, None]  # d log busy / d log of either
    bubble = np.exp(value["bubble"]) * parts.bubble
    times = parts.micro_batches * (1 + bubble)
    total = times * (busy + latency) + once.sum(axis=1)

    share = times / total
    found = np.empty((len(total), len(NAMES)))
    working = share * weight[:, 0] * busy / work
    found[:, :a] = device * working[:, None]
    products, attention = found[:, _AT["products"]], found[:, _AT["attention"]]
    found[:, _AT["peak_decline"]] = (products + attention) * parts.faster[:, 0]
    found[:, _AT["eight_bit"]] = products * parts.faster[:, 1]
    found[:, a : a + b] = once / total[:, None]
    found[:, _AT["step_overhead_growth"]] = once[:, -1] / total * log_devices
    found[:, _AT["unstated_attention"]] = unstated * working
    found[:, _AT["launch"]] = share * weight[:, 1] * busy
    # the maximum itself is divided out, which the logs of both powers know
    found[:, _AT["sharpness"]] = share * busy * ((weight * logs).sum(axis=1) - np.log(both) / p)
    found[:, _AT["bubble"]] = parts.micro_batches * bubble * (busy + latency) / total
    waited = share * latency
    found[:, _AT["latency"]] = waited
    found[:, _AT["latency"] + 1 :] = waited[:, None] * parts.growth
    return np.log(total), found
