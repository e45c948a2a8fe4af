"""Which batches and device layouts are legal: the arithmetic that all frameworks share.

Two identities hold in every legal configuration, and the shapes divide:

    global batch = micro batch x accumulation x dp        (in sequences)
    devices      = dp x tp x pp x cp
"""

from __future__ import annotations

from typing import Any

from pretune.datasets.frameworks.base import Problem
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.stated import nearest_divisors
from pretune.datasets.workload import Workload


def filled_layout(workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, Any]:
    """tp, pp, vp, cp, ep, dp, micro_batch and accumulation, the unset ones derived.

    dp takes the devices that tp, pp and cp leave. Of micro_batch and accumulation the unset
    one follows from the global batch; with neither, accumulation is 1, as in DeepSpeed when only
    the train batch size is given. A quotient that is not whole is rounded down, at least to 1:
    :func:`layout_problems` is what judges.
    """
    layout: dict[str, Any] = {name: getattr(knobs, name) or 1 for name in ("tp", "pp", "vp", "cp", "ep")}
    degree = layout["tp"] * layout["pp"] * layout["cp"]
    dp = knobs.dp or max(platform.devices // degree, 1)
    per_replica = max(workload.global_batch_sequences // dp, 1)
    accumulation = knobs.accumulation or max(per_replica // (knobs.micro_batch or per_replica), 1)
    micro_batch = knobs.micro_batch or max(per_replica // accumulation, 1)
    return layout | {"dp": dp, "micro_batch": micro_batch, "accumulation": accumulation}


def layout_problems(workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
    """Everything wrong with the batch, the devices and the shapes; empty when they are legal."""
    layout = filled_layout(workload, platform, knobs)
    return (
        _device_problems(platform.devices, knobs, layout)
        + _batch_problems(workload.global_batch_sequences, knobs, layout)
        + _shape_problems(workload, layout)
    )


def _device_problems(devices: int, knobs: Knobs, layout: dict[str, Any]) -> list[Problem]:
    product = layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"]
    if product == devices:
        return []
    given = [name for name in ("dp", "tp", "pp", "cp") if getattr(knobs, name)]
    field = given[0] if given else "dp"
    others = product // layout[field]
    if devices % others == 0 and field == "dp":
        nearest = [devices // others]
    else:
        nearest = nearest_divisors(devices, layout[field])
    shown = " x ".join(f"{name} {layout[name]}" for name in ("dp", "tp", "pp", "cp"))
    return [Problem(field, f"{shown} = {product}, but the platform has {devices} devices", tuple(nearest))]


def _batch_problems(sequences: int, knobs: Knobs, layout: dict[str, Any]) -> list[Problem]:
    micro, accumulation, dp = layout["micro_batch"], layout["accumulation"], layout["dp"]
    if micro * accumulation * dp == sequences:
        return []
    if sequences % dp:
        reason = f"a global batch of {sequences} sequences is not divisible by dp {dp}"
        return [Problem("dp", reason, tuple(nearest_divisors(sequences, dp)))]
    per_replica = sequences // dp
    reason = (
        f"micro_batch {micro} x accumulation {accumulation} x dp {dp} = {micro * accumulation * dp}, "
        f"but the global batch is {sequences} sequences"
    )
    if knobs.micro_batch and knobs.accumulation and per_replica % micro == 0:
        return [Problem("accumulation", reason, (per_replica // micro,))]
    field = "micro_batch" if knobs.micro_batch else "accumulation"
    return [Problem(field, reason, tuple(nearest_divisors(per_replica, layout[field])))]


def _shape_problems(workload: Workload, layout: dict[str, Any]) -> list[Problem]:
    model, stages = workload.model, layout["pp"]
    divided = [  # what, how much of it, by which degree; tp as in Megatron-LM (arXiv:1909.08053, sec. 3)
        ("heads", model.heads, "tp"),
        ("kv_heads", model.kv_heads, "tp"),
        ("ffn_size", model.ffn_size, "tp"),
        ("vocabulary", model.vocabulary, "tp"),
        ("layers", model.layers, "pp"),
        ("layers per stage", max(model.layers // stages, 1), "vp"),
        ("sequence_length", workload.sequence_length, "cp"),
        ("experts", max(model.experts, 1), "ep"),
    ]
    problems = [
        Problem(
            degree,
            f"{what} {size} is not divisible by {degree} {layout[degree]}",
            tuple(nearest_divisors(size, layout[degree])),
        )
        for what, size, degree in divided
        if size % layout[degree]
    ]
    if layout["vp"] > 1 and stages == 1:
        problems.append(Problem("vp", f"vp {layout['vp']} interleaves pipeline stages, but pp is 1", (1,)))
    return problems


def refuse_parallelism(layout: dict[str, Any], knobs: Knobs) -> list[Problem]:
    """The degrees above 1 that pretune's own trial program cannot run: it replicates the whole model."""
    problems = [
        Problem(
            name,
            f"{layout[name]} splits the model, but this version's trial program is data-parallel only",
            (1,),
        )
        for name in ("tp", "pp", "vp", "cp", "ep")
        if layout[name] > 1
    ]
    if knobs.sequence_parallel:
        problems.append(
            Problem("sequence_parallel", "needs tensor parallelism, which is not built in", (False,))
        )
    return problems


def one_of(knobs: Knobs, name: str, allowed: tuple[str, ...], why: str) -> list[Problem]:
    """A problem when the knob is set to something that is not allowed; ``why`` completes the sentence."""
    value = getattr(knobs, name)
    if value is None or value in allowed:
        return []
    return [Problem(name, f"{value} {why}", allowed)]
