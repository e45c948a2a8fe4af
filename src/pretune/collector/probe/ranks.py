"""On every rank: look and measure, by the plan in the folder; rank 0 writes down what all found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pretune.collector.evidence import read_json, write_json
from pretune.collector.probe.device import copies, products
from pretune.collector.probe.links import groups, times
from pretune.collector.probe.machine import look
from pretune.collector.probe.plan import Plan
from pretune.collector.process import LIMITS_CPU, enter_control_groups

PLAN, FOUND = "plan.json", "probe.json"  # in the folder: what to measure, what was found


def run(folder: Path) -> int:
    """Measure on this rank, and gather; returns an exit code. Rank 0 writes :data:`FOUND`, whose fields are

    machines      one :class:`Machine` a rank
    products      {precision, size, seconds}: of square matrices; the slowest rank's
    copies        bytes per second by kind; the slowest rank's
    collectives   {scope, op, ranks, bytes, seconds}: as :func:`links.times` has them
    missing       why an operation was not measured, by "scope_op"
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    enter_control_groups(LIMITS_CPU)
    plan = Plan(**read_json(folder / PLAN))
    with process_group() as device:
        told = _Progress(folder)
        own = _own_figures(plan, device, told)
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        found = _slowest(everyone) | _collectives(plan, device, told)
        if dist.get_rank() == 0:
            write_json(folder / FOUND, found)
    return 0


@contextmanager
def process_group() -> Iterator[Any]:
    """Joined to all ranks, by NCCL (on AMD GPUs RCCL) or gloo; the torch device of this one."""
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    yield device
    dist.destroy_process_group()


class _Progress:
    """What is measured now, for who watches: a launcher ends what says nothing for long."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "progress.json"

    def __call__(self, phase: str) -> None:
        if os.environ["RANK"] == "0":
            write_json(self.path, {"phase": phase}, durable=False)


def _own_figures(plan: Plan, device: Any, told: _Progress) -> dict[str, Any]:
    """This rank's machine, products and copies."""
    measured = {}
    for precision in plan.precisions[device.type]:
        told(f"{precision} products")
        measured[precision] = products(precision, plan.matrix_sizes[device.type], device)
    told("copies")
    return {"machine": asdict(look(device)), "products": measured, "copies": copies(device)}


def _slowest(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """All ranks' figures as one: a step ends with the slowest. A size that not all measured is left out."""
    first = ranks[0]
    return {
        "machines": [rank["machine"] for rank in ranks],
        "products": [
            {
                "precision": precision,
                "size": size,
                "seconds": max(r["products"][precision][size] for r in ranks),
            }
            for precision, sizes in first["products"].items()
            for size in sizes
            if all(size in rank["products"][precision] for rank in ranks)
        ],
        "copies": {kind: min(rank["copies"][kind] for rank in ranks) for kind in first["copies"]},
    }


def _collectives(plan: Plan, device: Any, told: _Progress) -> dict[str, Any]:
    """``collectives`` and ``missing``. Over all devices only the all-reduce, for which training waits."""
    import torch.distributed as dist

    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for scope, group in groups(device, dist.get_world_size() // ranks, ranks).items():
        for op in plan.ops if scope != "all_devices" else ("all_reduce",):
            told(f"{scope} {op}")
            try:
                found = times(op, group, plan.message_bytes[device.type], device)
            except RuntimeError as error:  # the backend has none
                missing[f"{scope}_{op}"] = " ".join(str(error).split())
                continue
            members = dist.get_world_size(group)
            rows += [
                {"scope": scope, "op": op, "ranks": members, "bytes": size, "seconds": value}
                for size, value in found.items()
            ]
    return {"collectives": rows, "missing": missing}
