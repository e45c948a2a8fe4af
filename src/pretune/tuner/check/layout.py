"""Batch and layout of one configuration, whichever framework states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pretune.datasets.frameworks.base import Problem
from pretune.datasets.frameworks.legality import device_problems, filled, shape_problems
from pretune.datasets.knobs import Knobs
from pretune.datasets.stated import divisors
from pretune.datasets.workload import ModelSpec
from pretune.tuner.check.devices import Devices


def judged(
    sequences: int | None,
    knobs: Knobs,
    devices: Devices,
    model: ModelSpec | None,
    sequence_length: int | None,
    names: Mapping[str, str],
) -> tuple[dict[str, Any], list[Problem]]:
    """The layout with all that follows from the devices, and what is wrong with it.

    ``sequences``: the global batch; None lets micro batch, accumulation and devices make it. ``names``: what
    the framework calls pretune's knobs, and ``sequences``, for whoever has to mend them.
    """
    degree = (knobs.tp or 1) * (knobs.pp or 1) * (knobs.cp or 1)
    if sequences is None:
        replicas = knobs.dp or max(devices.count // degree, 1)
        sequences = (knobs.micro_batch or 1) * (knobs.accumulation or 1) * replicas
    layout = filled(sequences, devices.count, knobs)
    problems = device_problems(devices.count, knobs, layout, model, sequence_length)
    if not problems:
        problems = _batch_problems(sequences, knobs, layout, devices)
    problems += shape_problems(model, sequence_length, layout)
    problems += devices.torn(layout["tp"] * layout["cp"], "tp" if layout["tp"] > 1 else "cp")
    known = {"devices": devices.count, "global_batch_sequences": sequences} | layout
    return known, [replace(each, field=names.get(each.field, each.field)) for each in problems]


def _batch_problems(
    sequences: int, knobs: Knobs, layout: Mapping[str, Any], devices: Devices
) -> list[Problem]:
    """A batch that no whole micro batch and accumulation reach: the nearest batches and device counts."""
    dp, micro, accumulation = layout["dp"], knobs.micro_batch, knobs.accumulation
    fixed = (micro or 1) * (accumulation or 1)
    exactly = bool(micro and accumulation)  # nothing is left open
    if sequences == fixed * dp or (not exactly and sequences % (fixed * dp) == 0):
        return []
    parts = {"micro batch": micro, "accumulation": accumulation, "dp": dp}
    product = " x ".join(f"{name} {size}" for name, size in parts.items() if size)
    reason = f"{product} = {fixed * dp}, {'but' if exactly else 'of which'} the global batch of {sequences} "
    reason += "sequences is another number" if exactly else "sequences is no multiple"
    counts = _device_counts(sequences, fixed, exactly, layout)
    near = tuple(_around(counts, devices.count))
    if micro and accumulation and sequences % (micro * dp) == 0:
        return [Problem("accumulation", reason, (sequences // (micro * dp),), near)]
    if micro and accumulation and sequences % (accumulation * dp) == 0:
        return [Problem("micro_batch", reason, (sequences // (accumulation * dp),), near)]
    below = sequences // (fixed * dp) * fixed * dp
    batches = [fixed * dp] if exactly else [batch for batch in (below, below + fixed * dp) if batch]
    return [Problem("sequences", reason, tuple(batches), near)]


def _device_counts(sequences: int, fixed: int, exactly: bool, layout: Mapping[str, Any]) -> list[int]:
    """All numbers of devices, ascending, on which the batch could stay as it is."""
    if sequences % fixed:
        return []
    replicas = sequences // fixed
    degree = layout["tp"] * layout["pp"] * layout["cp"]
    return [d * degree for d in ([replicas] if exactly else divisors(replicas))]


def _around(counts: list[int], wanted: int) -> list[int]:
    return [n for n in counts if n < wanted][-1:] + [n for n in counts if n > wanted][:1]
