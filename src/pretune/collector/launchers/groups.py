"""Several trials at a time: a launcher's devices, divided into groups that share none."""

from __future__ import annotations

import os
import shutil
from typing import Any

from pretune.errors import InputError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def divided(settings: dict[str, Any], groups: int, backend: str) -> list[dict[str, Any]]:
    """The ``launcher:`` of a job as one for each of ``groups``, of equal sizes.

    ``hosts`` are divided in their order, ``local`` devices by number: GPUs by what each process may see,
    ranks on the CPU by the cores that they may run on. What is replayed takes no device. Raises
    :class:`InputError` where the devices cannot be divided so.
    """
    if "replay" in settings:
        return [settings] * groups
    rest = {name: value for name, value in settings.items() if name not in ("local", "hosts")}
    if "hosts" in settings:
        parts = _parts(list(settings["hosts"]), groups, "hosts")
        return [rest | {"hosts": part} for part in parts]
    if "local" not in settings:
        raise InputError("parallel: only the devices of local or hosts can be divided; leave it out")
    count = int(settings["local"]["devices"])
    devices = _parts([str(n) for n in range(count)], groups, "launcher.local.devices")
    if backend == "gloo":
        return [rest | {"hosts": [_on_cores(len(devices[0]), part)]} for part in _cores(groups)]
    shown = os.environ.get(VISIBLE, ",".join(map(str, range(count)))).split(",")
    return [
        rest | {"hosts": [{"ranks": len(part), "devices": ",".join(shown[int(n)] for n in part)}]}
        for part in devices
    ]


def _cores(groups: int) -> list[list[str]]:
    """This process's, as many for each; those that are left over lie idle."""
    if shutil.which("taskset") is None:
        raise InputError("parallel: needs taskset to keep groups apart on one machine; install util-linux")
    own = [str(core) for core in sorted(os.sched_getaffinity(0))]
    if len(own) < groups:
        raise InputError(f"parallel: {groups} groups need a core each, but this machine has {len(own)}")
    return _parts(own[: len(own) - len(own) % groups], groups, "cores")


def _on_cores(ranks: int, cores: list[str]) -> dict[str, Any]:
    return {"ranks": ranks, "interface": "lo", "prefix": ["taskset", "-c", ",".join(cores)]}


def _parts(items: list[Any], groups: int, what: str) -> list[list[Any]]:
    size, left = divmod(len(items), groups)
    if left or not size:
        raise InputError(
            f"parallel: {what}: {len(items)} cannot be divided into {groups} groups of one size; "
            f"use {_nearest(len(items), groups)}"
        )
    return [items[at * size : (at + 1) * size] for at in range(groups)]


def _nearest(count: int, groups: int) -> int:
    """The most groups up to ``groups`` that ``count`` things can be divided into."""
    return max(n for n in range(1, groups + 1) if count % n == 0)
