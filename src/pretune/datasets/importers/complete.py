"""From what a log states to a trial: what follows is derived, what contradicts itself is set aside."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pretune.datasets import presets, schema
from pretune.datasets.importers import place
from pretune.datasets.importers.base import Contradiction, Run, SetAside, digest
from pretune.datasets.platform import StatedPlatform
from pretune.datasets.spec import one_line
from pretune.datasets.stated import StatedModel
from pretune.datasets.trial import Status, Trial
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
# what sources call a precision; None: mixed with one of the 16-bit types, and not said with which
PRECISIONS: dict[str, str | None] = {
    **dict.fromkeys(("bfloat16", "bf16-mixed", "bf16-true", "amp_bf16"), "bf16"),
    **dict.fromkeys(("float16", "16-mixed", "16-true", "amp_fp16"), "fp16"),
    **dict.fromkeys(("float32", "32", "32-true"), "fp32"),
    **dict.fromkeys(("amp_fp8", "float8"), "fp8"),
    **dict.fromkeys(("amp", "mixed"), None),
}


@dataclass(frozen=True)
class Given:
    """What the user states beside the logs: the platform, and ``constants`` by column of the store.

    A log's own word goes before a constant. Of a platform, the number of nodes is the log's where it says so.
    """

    platform: StatedPlatform | None = None
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
        _numerics(values)
        place.platform(values, given.platform)
        _batch(values)
        run.notes.extend(_throughput(values))
        _ending(values)
        values |= {
            "trial_id": f"{format}-{digest(run.key)}",
            "purpose": "imported",
            "source": values.get("source", format),
            "framework": values.get("framework", format),
            "created_at": values.get("created_at") or datetime.fromtimestamp(path.stat().st_mtime, UTC),
        }
        return schema.unflatten(values)
    except Contradiction as error:
        return SetAside(str(path), run.line, str(error))
    except ValidationError as error:
        reason = one_line(error, "").removeprefix(": ").replace("workload.model.", "model.")
        reason = reason.replace("Field required", "not stated")
        return SetAside(str(path), run.line, f"{reason}; state it under constants in --map")


def _numerics(values: dict[str, Any]) -> None:
    """The precision's one name; unknown where the source's word may mean several."""
    if (told := values.get("workload.precision")) is not None:
        word = str(told).lower()
        values["workload.precision"] = PRECISIONS.get(word, word)


def _model(values: dict[str, Any], format: str) -> None:
    """What a public model's name says of its shape; a name where the log states only a shape."""
    name = values.get("model.name")
    shape = [values.get(f"model.{each}") for each in ("layers", "hidden_size")]
    if name is None:
        if all(shape):
            values["model.name"] = f"{format}-{shape[0]}x{shape[1]}"
        return
    prefix = "model."
    stated = {column.removeprefix(prefix): v for column, v in values.items() if column.startswith(prefix)}
    known = presets.known_model(StatedModel.model_validate(stated))
    if known is None or (values.get("workload.sequence_length") or 0) > known.max_positions:
        return
    for column, value in known.model_dump(exclude={"name"}).items():
        values.setdefault(f"{prefix}{column}", value)


def _batch(values: dict[str, Any]) -> None:
    """Layout and batch: each of dp, accumulation and the global batch where the others tell it."""
    degrees = [values.get(f"knob.{name}") or 1 for name in ("tp", "pp", "cp")]
    wide, devices = degrees[0] * degrees[1] * degrees[2], values["platform.devices"]
    if devices % wide:
        raise Contradiction(f"tp x pp x cp = {wide} does not divide {devices} devices")
    dp = values.setdefault("knob.dp", devices // wide)
    if dp * wide > devices:
        raise Contradiction(f"dp x tp x pp x cp = {dp * wide} exceeds {devices} devices")
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
        raise Contradiction(
            f"micro batch {micro} x accumulation {accumulation} x dp {dp} is not the global batch {sequences}"
        )
    if sequences and length:
        values.setdefault("workload.global_batch_tokens", sequences * length)


def _throughput(values: dict[str, Any]) -> list[str]:
    """One throughput from all figures that state it; :class:`Contradiction` where they disagree.

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
        raise Contradiction(
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
            raise Contradiction(
                "states samples per second, no workload.sequence_length; state it under constants in --map"
            )
        if values.get("step_time_s"):
            need = ("workload.sequence_length", "workload.global_batch_tokens")
            lacking = " and ".join(name for name in need if not values.get(name))
            raise Contradiction(
                f"has a step time, but states no {lacking}; state it under constants in --map"
            )
        values |= {"status": Status.CRASH, "cause": NOTHING}
    elif status != Status.OK:
        values.setdefault("cause", f"the log says {status}")
    if values["status"] != Status.OK:
        for name in MEASURED:
            values.pop(name, None)
