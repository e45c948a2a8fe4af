"""From what a log states to a trial: what follows is derived, what contradicts itself is set aside."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pretune.datasets import presets, schema
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.platform import Platform
from pretune.datasets.spec import one_line
from pretune.datasets.trial import Status, Trial
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError

# what a run may state beyond the store's columns, from which those follow
BESIDE = {
    "platform.devices": pa.int64(),
    "workload.global_batch_sequences": pa.int64(),
    "samples_per_s": pa.float64(),
}
AGREE = 1.03  # figures of one run that differ by less are rounded, not contradictory
MEASURED = ("step_time_s", "tokens_per_s", "tokens_per_s_per_device", "samples_per_s")
NOTHING = "no step was measured"


@dataclass(frozen=True)
class Given:
    """What the user states beside the logs: the platform, and ``constants`` by column of the store.

    A log's own word goes before a constant. Of a platform, the number of nodes is the log's where it says so.
    """

    platform: Platform | None = None
    constants: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column in self.constants:
            if not is_column(column):
                raise InputError(
                    f"map: constants: {column} is no column of the store; see pretune history show"
                )


def is_column(name: str) -> bool:
    """Whether a run may state ``name``."""
    known = name in schema.core_schema().names or name in BESIDE
    return known or name.startswith(tuple(schema.OPEN.values()))


def complete(run: Run, path: Path, format: str, given: Given) -> Trial | SetAside:
    """The trial of a run, or why there is none."""
    values = given.constants | {name: value for name, value in run.values.items() if value is not None}
    try:
        _model(values, format)
        _platform(values, given.platform)
        _batch(values)
        run.notes.extend(_throughput(values))
        _ending(values)
        values |= {
            "trial_id": f"{format}-{hashlib.sha256(run.key.encode()).hexdigest()[:20]}",
            "purpose": "imported",
            "source": values.get("source", format),
            "framework": values.get("framework", format),
            "created_at": values.get("created_at") or datetime.fromtimestamp(path.stat().st_mtime, UTC),
        }
        return schema.unflatten(values)
    except _Contradiction as error:
        return SetAside(str(path), run.line, str(error))
    except ValidationError as error:
        reason = one_line(error, "").removeprefix(": ").replace("workload.model.", "model.")
        reason = reason.replace("Field required", "not stated")
        return SetAside(str(path), run.line, f"{reason}; state it under constants in --map")


class _Contradiction(Exception):
    """Why a run cannot be a trial, with the remedy."""


def _model(values: dict[str, Any], format: str) -> None:
    """The shape of a public model that the log only names; a name where it states only a shape."""
    name, shape = (
        values.get("model.name"),
        [values.get(f"model.{each}") for each in ("layers", "hidden_size")],
    )
    if name is None and all(shape):
        values["model.name"] = f"{format}-{shape[0]}x{shape[1]}"
    elif name is not None and not all(shape):
        try:
            known = presets.model(str(name))
        except InputError:
            return
        for field, value in known.model_dump(exclude={"name"}).items():
            values.setdefault(f"model.{field}", value)


def _platform(values: dict[str, Any], given: Platform | None) -> None:
    """Fill the platform's columns: the user's, or of the accelerator that the log names."""
    if given is not None:
        theirs = values.get("accelerator.name")
        if theirs is not None and _one_name(theirs) != _one_name(given.accelerator.name):
            raise _Contradiction(f"ran on {theirs}, and --platform says {given.accelerator.name}")
        stated = schema.flatten(given)
        values |= {name if "." in name else f"platform.{name}": value for name, value in stated.items()}
        local, devices = given.devices_per_node, values.get("platform.devices", given.devices)
        if devices != given.devices:
            nodes = -(-devices // local)
            if devices % local and nodes > 1:
                raise _Contradiction(f"{devices} devices are no whole nodes of the platform's {local}")
            values["platform.devices_per_node"], values["platform.nodes"] = min(local, devices), nodes
            values["platform.name"] = f"{given.name}-{nodes}x{min(local, devices)}"
    elif "accelerator.name" not in values:
        raise _Contradiction("states no platform; give --platform")
    else:
        _named(values)
    values["platform.devices"] = values["platform.devices_per_node"] * values.get("platform.nodes", 1)


def _named(values: dict[str, Any]) -> None:
    """The columns of a platform of which the log names accelerator and number."""
    devices, local = values.get("platform.devices"), values.get("platform.devices_per_node")
    if not devices:
        raise _Contradiction("does not state how many devices it ran on; give --platform")
    local = min(local or devices, devices)
    if devices % local:
        raise _Contradiction(f"{devices} devices are no whole nodes of {local}; give --platform")
    values |= {"platform.devices_per_node": local, "platform.nodes": devices // local}
    _vendors(values)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", values["accelerator.name"]).strip("-.")
    values.setdefault("platform.name", f"{name}-{devices // local}x{local}")


def _one_name(accelerator: str) -> str:
    try:
        return presets.accelerator(accelerator).accelerator.name
    except InputError:
        return accelerator


def _vendors(values: dict[str, Any]) -> None:
    """The accelerator's one name and its vendor's figures, where there is a preset for it."""
    try:
        known = presets.accelerator(values["accelerator.name"])
    except InputError:
        return  # they stay unknown
    values["accelerator.name"] = known.accelerator.name
    stated = schema.flatten(known.accelerator)
    for column, value in stated.items():
        values.setdefault(column if "." in column else f"accelerator.{column}", value)
    values.setdefault("intra_node.bandwidth_bytes_per_s", known.intra_node.bandwidth_bytes_per_s)
    values.setdefault("inter_node.bandwidth_bytes_per_s", known.inter_node.bandwidth_bytes_per_s)


def _batch(values: dict[str, Any]) -> None:
    """Layout and batch: each of dp, accumulation and the global batch where the others tell it."""
    degrees = [values.get(f"knob.{name}") or 1 for name in ("tp", "pp", "cp")]
    wide, devices = degrees[0] * degrees[1] * degrees[2], values["platform.devices"]
    if devices % wide:
        raise _Contradiction(f"tp x pp x cp = {wide} does not divide {devices} devices")
    dp = values.setdefault("knob.dp", devices // wide)
    if dp * wide > devices:
        raise _Contradiction(f"dp x tp x pp x cp = {dp * wide} exceeds {devices} devices")
    length = values.get("workload.sequence_length")
    sequences, micro = values.get("workload.global_batch_sequences"), values.get("knob.micro_batch")
    if not sequences and length and values.get("workload.global_batch_tokens"):
        sequences = values["workload.global_batch_tokens"] // length
    accumulation = values.get("knob.accumulation")
    if not sequences and micro and accumulation:
        sequences = micro * accumulation * dp
    if sequences and micro and not accumulation and sequences % (micro * dp) == 0:
        accumulation = values["knob.accumulation"] = sequences // (micro * dp)
    if sequences and micro and accumulation and micro * accumulation * dp != sequences:
        raise _Contradiction(
            f"micro batch {micro} x accumulation {accumulation} x dp {dp} is not the global batch {sequences}"
        )
    if sequences and length:
        values.setdefault("workload.global_batch_tokens", sequences * length)
    if length and "model.max_positions" not in values:  # it ran: there are as many positions at least
        values["model.max_positions"] = max(length, ModelSpec.model_fields["max_positions"].default)


def _throughput(values: dict[str, Any]) -> list[str]:
    """One throughput from all figures that state it; :class:`_Contradiction` where they disagree.

    Returns what was odd: one reading made all agree.
    """
    odd = []
    devices, tokens = values["platform.devices"], values.get("workload.global_batch_tokens")
    length = values.get("workload.sequence_length")
    factors = {
        "tokens_per_s_per_device": 1.0,
        "tokens_per_s": 1 / devices,
        "samples_per_s": length / devices if length else None,
    }
    rates = {name: values[name] * factor for name, factor in factors.items() if factor and values.get(name)}
    if tokens and values.get("step_time_s"):
        rates["step_time_s"] = tokens / values["step_time_s"] / devices
    if not rates:
        return []
    slowest, fastest = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    ratio = rates[fastest] / rates[slowest]
    if slowest == "step_time_s" and len(rates) > 1 and 1000 / AGREE < ratio < 1000 * AGREE:
        values["step_time_s"] /= 1000
        odd = ["step_time_s is in milliseconds, by the throughput beside it"]
        del rates["step_time_s"]
    elif ratio > AGREE:
        known = {devices: "the number of devices", values.get("knob.accumulation"): "the accumulation steps"}
        like = next(
            (f", {what}" for n, what in known.items() if n and n > 1 and abs(ratio / n - 1) < 0.03), ""
        )
        raise _Contradiction(
            f"{fastest} is {ratio:.3g} times what {slowest} makes it{like}; one of them lies: correct it or "
            "leave it out with --map"
        )
    rate = next(iter(rates.values()))
    values["tokens_per_s_per_device"], values["tokens_per_s"] = rate, rate * devices
    if tokens:
        values.setdefault("step_time_s", tokens / rate / devices)
    return odd


def _ending(values: dict[str, Any]) -> None:
    """A run that measured nothing failed; one that failed has no throughput."""
    status = values.setdefault("status", Status.OK)
    if status == Status.OK and not values.get("tokens_per_s_per_device"):
        if values.get("samples_per_s"):
            raise _Contradiction(
                "states samples per second, no workload.sequence_length; state it under constants in --map"
            )
        if values.get("step_time_s"):
            need = ("workload.sequence_length", "workload.global_batch_tokens")
            lacking = " and ".join(name for name in need if not values.get(name))
            raise _Contradiction(
                f"has a step time, but states no {lacking}; state it under constants in --map"
            )
        values |= {"status": Status.CRASH, "cause": NOTHING}
    elif status != Status.OK:
        values.setdefault("cause", f"the log says {status}")
    if values["status"] != Status.OK:
        for name in MEASURED:
            values.pop(name, None)
