"""Collectives within and between nodes, timed over message sizes.

Every group of a kind communicates at the same time, as in training: all nodes within themselves, then every
device with those of its own place on the other nodes. So a figure is one device's share of what it shares,
and the slowest rank's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pretune.collector.probe.device import seconds, usual
from pretune.collector.probe.plan import SCOPES

_SECONDS = 0.2  # of calls, for one size
_CALLS = (5, 200)  # the least and the most
_SLOW_S = 0.5  # a call that takes longer is the last: the next size takes twice as long

Exchange = Callable[[], object]


def groups(device: Any, nodes: int, ranks: int) -> dict[str, Any]:
    """This rank's process groups with more than one member: in its node, between nodes, of all devices."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (nodes, ranks), mesh_dim_names=SCOPES[::-1])
    found: dict[str, Any] = {name: mesh.get_group(name) for name in SCOPES}
    if nodes > 1 and ranks > 1:
        found["all_devices"] = dist.group.WORLD
    return {name: group for name, group in found.items() if dist.get_world_size(group) > 1}


def exchange(op: str, group: Any, size_bytes: int, device: Any) -> tuple[Exchange, int]:
    """A call of ``op`` on a tensor of about ``size_bytes`` over the whole group; and its bytes exactly.

    ``point_to_point`` is a message from one neighbour to the other, and a word back: all go the same way.
    """
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size(group)
    shard = torch.full((-(-size_bytes // (4 * ranks)),), 0.0, device=device)
    whole = torch.full((len(shard) * ranks,), 0.0, device=device)
    calls: dict[str, Exchange] = {
        "all_reduce": partial(dist.all_reduce, whole, group=group),
        "all_gather": partial(dist.all_gather_into_tensor, whole, shard, group=group),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, shard, whole, group=group),
        "point_to_point": partial(_answered, whole, shard[:1], group),
    }
    return calls[op], 4 * len(whole)


def _answered(message: Any, word: Any, group: Any) -> None:
    """From rank 0 to 1, 2 to 3, ... of the group; the last of an odd number waits for nobody."""
    import torch.distributed as dist

    rank = dist.get_rank(group)
    if (rank ^ 1) >= dist.get_world_size(group):
        return
    peer = dist.get_global_rank(group, rank ^ 1)
    there, back = (dist.recv, dist.send) if rank & 1 else (dist.send, dist.recv)
    there(message, peer, group=group)
    back(word, peer, group=group)


def times(op: str, group: Any, sizes: tuple[int, ...], device: Any) -> dict[int, float]:
    """Seconds by bytes, of the slowest rank's usual call; fewer sizes where calls are slow.

    Of ``point_to_point`` the word back is taken off: half of what the smallest message and its answer take.
    Every rank must call it at the same time. Raises :class:`RuntimeError` on every rank where the
    backend has no such operation.
    """
    found: dict[int, float] = {}
    for size in sizes:
        call, size_bytes = exchange(op, group, size, device)
        call()
        slowest = _slowest(seconds(call), device)
        calls = max(_CALLS[0], min(_CALLS[1], int(_SECONDS / slowest)))  # every rank must make the same
        typical = _slowest(usual([seconds(call) for _ in range(calls)]), device)
        found[size_bytes] = typical
        if typical > _SLOW_S:
            break
    word_s = min(found.values()) / 2 if op == "point_to_point" else 0.0
    return {size_bytes: typical - word_s for size_bytes, typical in found.items()}


def _slowest(value: float, device: Any) -> float:
    """The largest of all ranks' values."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)
