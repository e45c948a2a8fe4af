"""Which batches and device layouts are legal: the arithmetic that all frameworks share.

Two identities hold in every legal configuration, and the shapes divide:

    global batch = micro batch x accumulation x dp        (in sequences)
    devices      = dp x tp x pp x cp
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from pretune.datasets.frameworks.base import Problem
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.stated import nearest_divisors
from pretune.datasets.workload import ModelSpec, Workload


def filled_layout(workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, Any]:
    """tp, pp, vp, cp, ep, dp, micro_batch and accumulation, the unset ones derived.

    dp takes the devices that tp, pp and cp leave. Of micro_batch and accumulation the unset
    one follows from the global batch; with neither, accumulation is 1, as in DeepSpeed when only
    the train batch size is given. A quotient that is not whole is rounded down, at least to 1:
    :func:`layout_problems` is what judges.
    """
    return filled(workload.global_batch_sequences, platform.devices, knobs)


def filled(sequences: int, devices: int, knobs: Knobs) -> dict[str, Any]:
    """:func:`filled_layout` for a global batch of ``sequences``."""
    layout: dict[str, Any] = {name: getattr(knobs, name) or 1 for name in ("tp", "pp", "vp", "cp", "ep")}
    degree = layout["tp"] * layout["pp"] * layout["cp"]
    dp = knobs.dp or max(devices // degree, 1)
    per_replica = max(sequences // dp, 1)
    accumulation = knobs.accumulation or max(per_replica // (knobs.micro_batch or per_replica), 1)
    micro_batch = knobs.micro_batch or max(per_replica // accumulation, 1)
    return layout | {"dp": dp, "micro_batch": micro_batch, "accumulation": accumulation}


def layout_problems(
    workload: Workload, platform: Platform, knobs: Knobs, uneven: Collection[str] = ()
) -> list[Problem]:
    """Everything wrong with the batch, the devices and the shapes; empty when they are legal."""
    layout = filled_layout(workload, platform, knobs)
    model, length = workload.model, workload.sequence_length
    return (
        device_problems(platform.devices, knobs, layout, model, length, uneven)
        + _batch_problems(workload.global_batch_sequences, knobs, layout)
        + shape_problems(model, length, layout, uneven)
    )


def device_problems(
    devices: int,
    knobs: Knobs,
    layout: dict[str, Any],
    model: ModelSpec | None,
    sequence_length: int | None,
    uneven: Collection[str] = (),
) -> list[Problem]:
    """A problem when the degrees' product is not the number of devices; the nearest fit the model too."""
    degrees = ("dp", "tp", "pp", "cp")
    product = math.prod(layout[name] for name in degrees)
    if product == devices:
        return []
    given = [name for name in degrees if getattr(knobs, name)] or ["dp"]
    free = 1 if knobs.dp else layout["dp"]  # dp takes what the others leave
    others = {name: product // layout[name] // free for name in given}
    field = next((name for name in given if devices % others[name] == 0), given[0])
    left = devices // others[field] if devices % others[field] == 0 else devices
    nearest = [left] if field == "dp" else nearest_divisors(left, layout[field])
    fits = [n for n in nearest if not shape_problems(model, sequence_length, layout | {field: n}, uneven)]
    shown = " x ".join(f"{name} {layout[name]}" for name in degrees)
    reason = f"{shown} = {product}, but the platform has {devices} devices"
    unit = product // free
    below = devices // unit * unit
    counts = [count for count in (below, below + unit) if count] if not fits else []
    return [Problem(field, reason, tuple(fits), tuple(counts))]


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


def shape_problems(
    model: ModelSpec | None, sequence_length: int | None, layout: dict[str, Any], uneven: Collection[str] = ()
) -> list[Problem]:
    """What of the model's shape the degrees do not divide; None: nothing is known of it.

    ``uneven``: what the framework pads or splits unevenly ("vocabulary", "layers", ...).
    """
    stages = layout["pp"]
    divided = [("sequence_length", sequence_length, "cp")] if sequence_length else []
    if model is not None:  # what, how much of it, by which degree; tp: Megatron-LM (arXiv:1909.08053, sec. 3)
        divided += [
            ("heads", model.heads, "tp"),
            ("kv_heads", model.kv_heads, "tp"),
            ("ffn_size", model.ffn_size, "tp"),
            ("vocabulary", model.vocabulary, "tp"),
            ("layers", model.layers, "pp"),
            ("layers per stage", max(model.layers // stages, 1), "vp"),
            ("experts", max(model.experts, 1), "ep"),
        ]
    problems = [
        Problem(
            degree,
            f"{what} {size} is not divisible by {degree} {layout[degree]}",
            tuple(nearest_divisors(size, layout[degree])),
        )
        for what, size, degree in divided
        if size % layout[degree] and what not in uneven
    ]
    if layout["vp"] > 1 and stages == 1:
        problems.append(Problem("vp", f"vp {layout['vp']} interleaves pipeline stages, but pp is 1", (1,)))
    return problems


def refuse_parallelism(layout: dict[str, Any], knobs: Knobs, runs: tuple[str, ...] = ()) -> list[Problem]:
    """The degrees above 1, but for those in ``runs``, that pretune's own trial program cannot run."""
    able = " x ".join(("dp", *runs))
    reason = f"splits the model, but the trial program runs {able} of this framework only"
    problems = [
        Problem(name, f"{layout[name]} {reason}", (1,))
        for name in ("tp", "pp", "vp", "cp", "ep")
        if layout[name] > 1 and name not in runs
    ]
    if knobs.sequence_parallel:
        problems.append(Problem("sequence_parallel", reason, (False,)))
    return problems


def own_script_only(framework: str) -> list[Problem]:
    """What keeps a trial from running without a script of the user's."""
    reason = f"pretune's trial program does not run {framework}; give command: with a script that does"
    return [Problem("framework", reason)]


def one_of(knobs: Knobs, name: str, allowed: tuple[str, ...], why: str) -> list[Problem]:
    """A problem when the knob is set to something that is not allowed; ``why`` completes the sentence."""
    value = getattr(knobs, name)
    if value is None or value in allowed:
        return []
    return [Problem(name, f"{value} {why}", allowed)]
