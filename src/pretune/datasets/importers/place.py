"""Where a run ran: the platform that the user names, or the one that its accelerator and devices make."""

from __future__ import annotations

import re
from typing import Any

from pretune.datasets import presets, schema
from pretune.datasets.importers.base import Contradiction
from pretune.datasets.platform import StatedPlatform


def platform(values: dict[str, Any], given: StatedPlatform | None) -> None:
    """Fill the platform's columns of a run's ``values``: the user's, or those of the accelerator it names.

    Raises :class:`Contradiction` where both name another accelerator, or neither says enough.
    """
    if given is not None:
        _users(values, given)
    elif "accelerator.name" not in values:
        raise Contradiction("states no platform; give --platform")
    else:
        _named(values)
    values["platform.devices"] = values["platform.devices_per_node"] * values.get("platform.nodes", 1)


def _users(values: dict[str, Any], given: StatedPlatform) -> None:
    """The platform as the user has it; of its nodes, as many as the log's devices fill."""
    theirs = values.get("accelerator.name")
    if theirs is not None and _one_name(theirs) != _one_name(given.accelerator.name):
        raise Contradiction(
            f"ran on {theirs}, and --platform says {given.accelerator.name}; "
            "leave --platform out, or give its accelerator this name"
        )
    stated = schema.flatten(given)
    values |= {name if "." in name else f"platform.{name}": value for name, value in stated.items()}
    if given.backend is None and (known := presets.known_accelerator(given.accelerator.name)):
        values["platform.backend"] = known.backend
    local, devices = given.devices_per_node, values.get("platform.devices", given.devices)
    if devices == given.devices:
        return
    nodes = -(-devices // local)
    if devices % local and nodes > 1:
        raise Contradiction(f"{devices} devices are no whole nodes of the platform's {local}")
    values["platform.devices_per_node"], values["platform.nodes"] = min(local, devices), nodes
    values["platform.name"] = f"{given.name}-{nodes}x{min(local, devices)}"


def _named(values: dict[str, Any]) -> None:
    """The columns of a platform of which the log names accelerator and number."""
    known = presets.known_accelerator(values["accelerator.name"])
    nodes, local = _nodes(values, known)
    values |= {"platform.devices_per_node": local, "platform.nodes": nodes}
    if known is not None:
        _vendors(values, known)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", values["accelerator.name"]).strip("-.")
    values.setdefault("platform.name", f"{name}-{nodes}x{local}")


def _nodes(values: dict[str, Any], known: presets.AcceleratorPreset | None) -> tuple[int, int]:
    """Nodes and devices in each. Where neither is stated, nodes are of the size that the vendor builds."""
    devices, nodes = values.get("platform.devices"), values.get("platform.nodes")
    local = values.get("platform.devices_per_node")
    if not devices and nodes and local:
        devices = nodes * local
    if not devices:
        raise Contradiction("does not state how many devices it ran on; give --platform")
    if not local and nodes and devices % nodes == 0:
        local = devices // nodes
    if not local and (known is not None or devices == 1):
        local = known.devices_per_node if known else 1
    if not local:
        raise Contradiction(
            f"does not state how many of its {devices} devices share a node; "
            "state platform.devices_per_node under constants in --map, or give --platform"
        )
    local = min(local, devices)
    if devices % local:
        raise Contradiction(f"{devices} devices are no whole nodes of {local}; give --platform")
    return devices // local, local


def _vendors(values: dict[str, Any], known: presets.AcceleratorPreset) -> None:
    """The accelerator's one name and its vendor's figures, where the log states none."""
    values["accelerator.name"] = known.accelerator.name
    for column, value in schema.flatten(known.accelerator).items():
        values.setdefault(column if "." in column else f"accelerator.{column}", value)
    values.setdefault("intra_node.bandwidth_bytes_per_s", known.intra_node.bandwidth_bytes_per_s)
    values.setdefault("inter_node.bandwidth_bytes_per_s", known.inter_node.bandwidth_bytes_per_s)
    values.setdefault("platform.backend", known.backend)


def _one_name(accelerator: str) -> str:
    known = presets.known_accelerator(accelerator)
    return known.accelerator.name if known else accelerator
