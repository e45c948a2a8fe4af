"""Shapes of public models and figures of public accelerators, by name, with the documents they come from."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from pretune.datasets.platform import Accelerator, Backend, Link, PeakFlops
from pretune.datasets.stated import StatedModel
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError


@dataclass(frozen=True)
class AcceleratorPreset:
    """One device as its vendor describes it, and the machine that it usually sits in.

    ``intra_node`` and ``inter_node`` are what one device can send in one direction to its
    neighbours within and beyond the node. ``devices_per_node`` counts what shares the fast link;
    ``backend`` is the vendor's own for collectives.
    None where no document gives the figure; ``note`` says so. ``sources``: what -> document.
    """

    accelerator: Accelerator
    intra_node: Link
    inter_node: Link
    devices_per_node: int
    backend: Backend
    sources: dict[str, str]
    note: str


def model(name: str) -> ModelSpec:
    """The shape of that name (or alias); raises :class:`InputError` naming close ones."""
    key = _find("model", name, "models.yaml")
    entry = _entries("models.yaml")[key]
    return ModelSpec.from_mapping({"name": key, **entry["spec"]}, f"preset {key}")


def accelerator(name: str) -> AcceleratorPreset:
    """The device of that name (or alias); raises :class:`InputError` naming close ones."""
    key = _find("accelerator", name, "accelerators.yaml")
    entry = _entries("accelerators.yaml")[key]
    peak = {precision: value * 1e12 for precision, value in entry.get("peak_tflop_per_s", {}).items()}
    memory, bandwidth = entry.get("memory_gib"), entry.get("memory_bandwidth_gb_per_s")
    return AcceleratorPreset(
        accelerator=Accelerator(
            name=key,
            peak_flops_per_s=PeakFlops(**peak),
            memory_bytes=memory and int(memory * 2**30),
            memory_bandwidth_bytes_per_s=bandwidth and bandwidth * 1e9,
        ),
        intra_node=_link(entry.get("intra_node_gb_per_s")),
        inter_node=_link(entry.get("inter_node_gb_per_s")),
        devices_per_node=entry["devices_per_node"],
        backend=entry.get("backend", "nccl"),
        sources=entry["sources"],
        note=" ".join(entry.get("note", "").split()),
    )


def known_accelerator(name: str) -> AcceleratorPreset | None:
    """The device that somebody's own name of it means; None where no preset has that name."""
    return accelerator(name) if _normal(name) in _index("accelerators.yaml") else None


def known_model(stated: StatedModel) -> ModelSpec | None:
    """The public model of that name, unless something that is stated of its shape is another's."""
    if _normal(stated.name) not in _index("models.yaml"):
        return None
    found, told = model(stated.name), stated.model_dump(exclude={"name"}, exclude_none=True)
    return found if all(getattr(found, field) == value for field, value in told.items()) else None


def model_names() -> list[str]:
    """The names of all model presets, aliases left out."""
    return list(_entries("models.yaml"))


def accelerator_names() -> list[str]:
    """The names of all accelerator presets, aliases left out."""
    return list(_entries("accelerators.yaml"))


def _link(gb_per_s: float | None) -> Link:
    return Link(bandwidth_bytes_per_s=gb_per_s * 1e9 if gb_per_s else None)


@cache
def _entries(file: str) -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return entries


@cache
def _index(file: str) -> dict[str, str]:
    """Normal form of every name and alias -> name."""
    return {
        _normal(alias): name
        for name, entry in _entries(file).items()
        for alias in (name, *entry.get("aliases", ()))
    }


def _normal(name: str) -> str:
    """Without what people write in many ways: case, spaces, and the vendor's name before the device's."""
    return re.sub(r"[^a-z0-9.]", "", name.casefold()).removeprefix("nvidia").removeprefix("amd")


def _find(what: str, name: str, file: str) -> str:
    found = _index(file).get(_normal(name))
    if found is None:
        close = _close(_normal(name), _index(file))
        raise InputError(f"{what}: no preset named {name!r}; {_hint(close or _entries(file))}")
    return found


def _close(name: str, index: dict[str, str]) -> list[str]:
    matches = difflib.get_close_matches(name, index, n=3, cutoff=0.5)
    return list(dict.fromkeys(index[match] for match in matches))


def _hint(names: Iterable[str]) -> str:
    return f"did you mean {' or '.join(names)}?" if isinstance(names, list) else f"known: {', '.join(names)}"
