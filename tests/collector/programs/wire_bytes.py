"""A rank program: how many bytes its interface sent for each byte of a tensor, by operation."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from pretune.collector.evidence import write_json
from pretune.collector.probe.links import exchange
from pretune.collector.probe.plan import OPS

CALLS, SIZE_BYTES = 4, 4 << 20


def run(folder: Path) -> int:
    dist.init_process_group("gloo")
    interface = Path("/sys/class/net", os.environ["GLOO_SOCKET_IFNAME"], "statistics", "tx_bytes")
    shares = {}
    for op in OPS:
        call, size_bytes = exchange(op, dist.group.WORLD, SIZE_BYTES, torch.device("cpu"))
        dist.barrier()
        before = int(interface.read_text())
        for _ in range(CALLS):
            call()
        dist.barrier()
        shares[op] = (int(interface.read_text()) - before) / (CALLS * size_bytes)
    if dist.get_rank() == 0:
        write_json(folder / "sent.json", shares)
    dist.destroy_process_group()
    return 0
