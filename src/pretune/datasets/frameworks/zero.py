"""The collectives of one optimizer step under ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, sec. 7).

Observed, and held by a test: with DeepSpeed 0.19.8 on two gloo ranks, the kinds, calls and bytes of
every stage, and how each setting changes them; on four, that they are those of the weights that tp and
pp leave a rank. ZeRO-1 and ZeRO-2 issue a whole all-reduce where the paper has a reduce-scatter; ZeRO-1
once a step, ZeRO-2 once a micro batch. Derived, not observed: more ranks, more than 5e8 weights, and the
second gather of weights at ZeRO-3, which a stage3_max_reuse_distance of 1000 did not bring about on a model
of 1e5 weights. Known to differ: ZeRO-3 with tp, where zero.Init shards over all ranks what AutoTP does not
split. Left out: padding to equal partitions (under 0.1 % of the bytes), and an 8-byte all-reduce for each
further sub_group_size of weights.
"""

from __future__ import annotations

from collections.abc import Iterable

from pretune.datasets.frameworks.base import Collective
from pretune.datasets.frameworks.common import ELEMENT_BYTES
from pretune.datasets.knobs import Knobs
from pretune.datasets.workload import Workload

_STAGE0_BUCKET = 500_000_000  # engine.py: MEMORY_OPT_ALLREDUCE_SIZE; no knob reaches it
_REUSE_DISTANCE = 1_000_000_000  # stage3_max_reuse_distance, unless it is set


def collectives(workload: Workload, knobs: Knobs) -> list[Collective]:
    """For resolved knobs, whatever the stage; nothing when one rank trains alone."""
    if knobs.dp == 1:
        return []
    if (knobs.pp or 1) > 1 and not knobs.zero_stage and _precision(workload, knobs) != "fp32":
        return _sharded_masters(workload, knobs)
    by_stage = {0: _stage0, 1: _stage1_and_2, 2: _stage1_and_2, 3: _stage3}
    return by_stage[knobs.zero_stage or 0](workload, knobs)


def _stage0(workload: Workload, knobs: Knobs) -> list[Collective]:
    """Gradients all-reduced whole at the end of the accumulation window."""
    sizes = _sizes(workload, knobs)
    scalars = _scalars(workload, knobs, bf16=(0, 0))
    calls, volume = buckets(sizes, _STAGE0_BUCKET), sum(sizes) * _gradient_bytes(workload, knobs)
    return [Collective("all_reduce", calls + scalars[0], volume + scalars[1])]


def _sharded_masters(workload: Workload, knobs: Knobs) -> list[Collective]:
    """A bf16 pipeline without ZeRO: DeepSpeed's BF16_Optimizer shards fp32 weights over dp all the same."""
    reduce = _stage0(workload, knobs)[0]
    gather = sum(_sizes(workload, knobs)) * ELEMENT_BYTES[_precision(workload, knobs)]
    return [reduce, Collective("all_gather", 1, gather)]


def _stage1_and_2(workload: Workload, knobs: Knobs) -> list[Collective]:
    """Gradients reduced in buckets, the norm (and overflow flag) agreed on, updated weights gathered."""
    sizes = _sizes(workload, knobs)
    times = _accumulation(knobs) if knobs.zero_stage == 2 else 1
    calls = times * buckets(reversed(sizes), knobs.reduce_bucket_size or 1)
    volume = times * sum(sizes) * _gradient_bytes(workload, knobs)
    scalars, scalar_bytes = _scalars(workload, knobs, bf16=(2, 5))
    gather = Collective("all_gather", 1, sum(sizes) * ELEMENT_BYTES[_precision(workload, knobs)])
    if knobs.use_multi_rank_bucket_allreduce or not knobs.reduce_scatter:
        return [Collective("all_reduce", calls + scalars, volume + scalar_bytes), gather]
    # one call per bucket and owner in it; each of the dp - 1 borders between owners cuts one bucket in two
    reduce = Collective("reduce", calls + times * ((knobs.dp or 1) - 1), volume)
    return [reduce, Collective("all_reduce", scalars, scalar_bytes), gather]


def _stage3(workload: Workload, knobs: Knobs) -> list[Collective]:
    """Gradients reduce-scattered and weights gathered once or twice a micro batch.

    Weights of at most ``stage3_param_persistence_threshold`` elements stay whole and are gathered one by
    one after the step. The others are gathered for the forward pass, and again for the backward pass
    when more than the reuse distance lies between their two uses: then they were released. With
    zero_hpz_partition_size that second gather is among so many ranks only, and zero_quantized_weights makes a
    weight one byte (ZeRO++, Wang et al. 2023, arXiv:2306.10209, section 3; derived).
    """
    threshold = knobs.stage3_param_persistence_threshold or 0
    sizes, times = _sizes(workload, knobs), _accumulation(knobs)
    persistent = [size for size in sizes if size <= threshold]
    sharded = [size for size in sizes if size > threshold]
    again = _released(
        sizes, threshold, int(knobs.settings().get("stage3_max_reuse_distance", _REUSE_DISTANCE))
    )
    prefetch, live = knobs.stage3_prefetch_bucket_size or 1, knobs.stage3_max_live_parameters or 1
    calls = len(persistent) + times * (gathers(sharded, prefetch, live) + gathers(again, prefetch, live))
    elements = sum(persistent) + times * (sum(sharded) + sum(again))
    quantized = knobs.settings().get("zero_quantized_weights")
    width = 1 if quantized else ELEMENT_BYTES[_precision(workload, knobs)]
    gather = Collective("all_gather", calls, elements * width)
    return [*_stage3_reductions(workload, knobs), gather]


def _stage3_reductions(workload: Workload, knobs: Knobs) -> list[Collective]:
    """Without ``reduce_scatter``, buckets in the contiguous buffer are all-reduced, larger weights not.

    zero_quantized_gradients sends half a byte of each element by all-to-alls, which stand here as the
    reduce-scatter that they make up (ZeRO++, section 3.3; derived).
    """
    limit, times = knobs.reduce_bucket_size or 1, _accumulation(knobs)
    whole = knobs.contiguous_gradients and not knobs.reduce_scatter
    backward = _sizes(workload, knobs)[::-1]
    scattered = [size for size in backward if size > limit or not whole]
    calls, width = times * buckets(backward, limit), times * _gradient_bytes(workload, knobs)
    scattered_calls = times * len(scattered) if whole else calls
    reduced = sum(backward) - sum(scattered)
    norm = Collective("all_reduce", 1 + calls - scattered_calls, 8 + reduced * width)
    if not scattered:
        return [norm]
    if knobs.settings().get("zero_quantized_gradients"):
        return [Collective("reduce_scatter", scattered_calls, times * sum(scattered) // 2), norm]
    return [Collective("reduce_scatter", scattered_calls, sum(scattered) * width), norm]


def _released(sizes: list[int], threshold: int, distance: int) -> list[int]:
    """The sharded weights that the forward pass leaves behind by more than the reuse distance."""
    after = 0
    again = []
    for size in reversed(sizes):
        if 2 * after >= distance and size > threshold:
            again.append(size)
        after += size
    return again


def buckets(sizes: Iterable[int], limit: int) -> int:
    """How many buckets of at most ``limit`` elements hold ``sizes`` in order; a larger one stands alone."""
    count, filled = 0, limit + 1
    for size in sizes:
        if filled + size > limit:
            count, filled = count + 1, 0
        filled += size
    return count


def gathers(sizes: Iterable[int], prefetch: int, live: int) -> int:
    """How many all-gathers fetch ``sizes`` ahead: each takes weights until it has ``prefetch`` elements.

    Once ``live`` elements are held, nothing more is fetched ahead and each weight comes alone.
    """
    calls = group = limit = held = 0
    for size in sizes:
        if group >= limit:
            calls, group, limit = calls + 1, 0, min(prefetch, live - held)
        group, held = group + size, held + size
    return calls


def _scalars(workload: Workload, knobs: Knobs, bf16: tuple[int, int]) -> tuple[int, int]:
    """Calls and bytes of the norm (4 bytes) and, below fp32, of the overflow flag (1 byte)."""
    return (1, 4) if _precision(workload, knobs) == "fp32" else bf16


def _sizes(workload: Workload, knobs: Knobs) -> list[int]:
    return workload.model.weight_sizes_of_rank(knobs.tp or 1, knobs.pp or 1)


def _precision(workload: Workload, knobs: Knobs) -> str:
    return knobs.precision or workload.precision


def _gradient_bytes(workload: Workload, knobs: Knobs) -> int:
    return ELEMENT_BYTES[knobs.communication_data_type or _precision(workload, knobs)]


def _accumulation(knobs: Knobs) -> int:
    return knobs.accumulation or 1
