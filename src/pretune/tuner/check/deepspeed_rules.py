"""What DeepSpeed 0.19.8 refuses, or ignores, of a configuration beside its keys and its batch."""

from __future__ import annotations

import json
from typing import Any

from pretune.datasets.frameworks.base import Problem
from pretune.tuner.check.deepspeed_keys import SECTION, ZERO

OFFLOAD = ("none", "cpu", "nvme")


def refused(config: dict[str, Any]) -> list[Problem]:
    """What DeepSpeed's own checks refuse beside the batch (DeepSpeedConfig and its sections; 0.19.8)."""
    found = []
    zero = config.get(SECTION, {})
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        found.append(Problem(f"{SECTION}.stage", f"{json.dumps(stage)} is no ZeRO stage", (0, 1, 2, 3)))
    found += _offload(zero, stage) + _reduction(config, zero, stage) + _states(config, stage)
    halves = [key for key in ("bf16", "bfloat16", "fp16") if _on(config.get(key))]
    if "fp16" in halves and len(halves) > 1:
        found.append(Problem("fp16.enabled", "fp16 and bf16 exclude each other; switch one off", (False,)))
    for key, kind in ZERO.items():
        if kind == "switch" and not isinstance(zero.get(key, True), bool):
            found.append(Problem(f"{SECTION}.{key}", f"{json.dumps(zero[key])} is neither true nor false"))
    return found


def _offload(zero: dict[str, Any], stage: Any) -> list[Problem]:
    devices = {name: _device(zero, name) for name in ("offload_optimizer", "offload_param")}
    found = [
        Problem(f"{SECTION}.{name}.device", f"{json.dumps(device)} is no place to offload to", OFFLOAD)
        for name, device in devices.items()
        if device not in OFFLOAD
    ]
    device = devices["offload_optimizer"]
    if device in ("cpu", "nvme") and not stage:  # the CPU's optimizer steps all the same, on a GPU's weights
        reason = f"{device} needs ZeRO, but the stage is {stage}; set it to 1, 2 or 3"
        found.append(Problem(f"{SECTION}.offload_optimizer.device", reason, ("none",)))
    return found


def _device(zero: dict[str, Any], name: str) -> Any:
    section = zero.get(name)
    return section.get("device", "none") if isinstance(section, dict) else "none"


def _reduction(config: dict[str, Any], zero: dict[str, Any], stage: Any) -> list[Problem]:
    """How gradients are reduced: gradient_allreduce_op and communication_data_type."""
    found = []
    kind, types = config.get("communication_data_type"), ("fp32", "bf16", "fp16")
    if kind is not None and str(kind).lower() not in types:
        found.append(Problem("communication_data_type", f"{json.dumps(kind)} is no type to reduce in", types))
    operation = str(config.get("gradient_allreduce_op", "mean")).lower()
    if operation not in ("mean", "sum"):
        reason = f"{operation} is no reduction that DeepSpeed has"
        found.append(Problem("gradient_allreduce_op", reason, ("mean", "sum")))
    compiled = config.get("compile")
    refuses = {
        "ZeRO-3": stage == 3,
        "ZenFlow": zero.get("zenflow") is not None,
        "DeepCompile": isinstance(compiled, dict) and compiled.get("deepcompile") is True,
    }
    if operation == "sum" and any(refuses.values()):
        reason = f"sum is refused with {' and '.join(name for name, used in refuses.items() if used)}"
        found.append(Problem("gradient_allreduce_op", reason, ("mean",)))
    return found


def _states(config: dict[str, Any], stage: Any) -> list[Problem]:
    """Master weights and optimizer states in 16 bits: of ZeRO alone, and whether or not ``enabled``."""
    half = "bf16" if isinstance(config.get("bf16"), dict) else "bfloat16"
    master, states = f"{half}.bf16_master_weights_and_grads", f"{half}.bf16_optimizer_states"
    switched = [name for name in ("fp16.fp16_master_weights_and_grads", master, states) if _set(config, name)]
    if not stage:
        reason = f"needs ZeRO, but the stage is {stage}; set it to 1, 2 or 3"
        return [Problem(name, reason, (False,)) for name in switched]
    if states in switched and master not in switched:
        return [Problem(states, f"needs {master} too", (False,))]
    return []


def ignored(config: dict[str, Any]) -> list[Problem]:
    """What DeepSpeed takes and does not use."""
    zero = config.get(SECTION, {})
    stage, device = zero.get("stage", 0), _device(zero, "offload_param")
    if device == "none" or stage == 3:
        return []
    reason = f"{device} is ignored: weights are offloaded by ZeRO-3 alone, and the stage is {stage}"
    return [Problem(f"{SECTION}.offload_param.device", reason, ("none",))]


def _on(section: Any) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True


def _set(config: dict[str, Any], place: str) -> bool:
    section, _, name = place.partition(".")
    held = config.get(section)
    return isinstance(held, dict) and held.get(name) is True
