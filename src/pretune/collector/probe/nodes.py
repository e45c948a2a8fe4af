"""On every rank: a matrix product and an all-reduce within the node, so that a slow node can be named."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pretune.collector.evidence import write_json
from pretune.collector.probe.device import seconds, timed
from pretune.collector.probe.links import exchange, groups
from pretune.collector.probe.plan import QUICK
from pretune.collector.probe.ranks import process_group
from pretune.collector.process import LIMITS_CPU, enter_control_groups

SPEEDS = "speeds.json"
_ROWS, _SPAN_S = 3, 0.3  # how often, and for how long, products are made in a row
_CALLS = 20  # all-reduces in a row: the same number on every rank


def run(folder: Path) -> int:
    """Measure on this rank, and gather. Rank 0 writes :data:`SPEEDS`: by rank, its ``host``, and the seconds
    of one ``matmul`` and one ``all_reduce`` among the ranks of its node (None where it is alone)."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    enter_control_groups(LIMITS_CPU)
    with process_group() as device:
        own = {"host": socket.gethostname(), "matmul_s": _product(device)}
        own["all_reduce_s"] = _all_reduce(device, int(os.environ["LOCAL_WORLD_SIZE"]))
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        if dist.get_rank() == 0:
            write_json(folder / SPEEDS, everyone)
    return 0


def _product(device: Any) -> float:
    import torch

    edge = QUICK.matrix_sizes[device.type][0]
    matrix = torch.randn(edge, edge, device=device)
    call = partial(torch.matmul, matrix, matrix)
    return _lasting(call, max(2, int(_SPAN_S / timed(call))))


def _all_reduce(device: Any, ranks: int) -> float | None:
    import torch.distributed as dist

    group = groups(device, dist.get_world_size() // ranks, ranks).get("intra_node")
    if group is None:
        return None
    call, _ = exchange("all_reduce", group, QUICK.message_bytes[device.type][-1], device)
    return _lasting(call, _CALLS)


def _lasting(call: Callable[[], object], count: int) -> float:
    """Seconds of one call among ``count`` in a row: what throttles a node lets single calls pass. The best of
    a few rows, since what else runs there only ever adds."""

    def row() -> None:
        for _ in range(count):
            call()

    row()
    return min(seconds(row) for _ in range(_ROWS)) / count
