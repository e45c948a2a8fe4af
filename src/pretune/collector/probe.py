"""What a platform is and does, told by the ranks of one short run: device, compute, memory copy, all-reduce.

Every rank computes at the same time, as it will in training. The all-reduce's time over
two message sizes gives latency and bus bandwidth, with 2 (n - 1) / n bytes on the wire
per byte of the tensor (a ring; Thakur et al. 2005, doi 10.1177/1094342005051521).
"""

from __future__ import annotations

import os
import platform as host
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pretune.collector.device import NVIDIA_DRIVER
from pretune.collector.evidence import write_json
from pretune.collector.process import LIMITS_CPU, enter_control_groups

_SIZE = 512  # of the square matrices: past the small-matrix losses, milliseconds on one core
_COPY_BYTES = 64 << 20
_SMALL_BYTES, _LARGE_BYTES = 4 << 10, {"cpu": 4 << 20, "cuda": 256 << 20}  # latency rules, bandwidth rules


@dataclass(frozen=True)
class Machine:
    """What one rank runs on: its share of the host's cores and memory, or its GPU (no ``cores``)."""

    host: str
    backend: str
    device: str
    cores: int | None
    memory_bytes: int
    nvidia_driver: bool


def run(folder: Path) -> int:
    """On every rank: look and measure; rank 0 writes ``probe.json`` into ``folder``. Returns an exit code.

    Its fields: ``fingerprint``, and ``machines`` with one :class:`Machine` a rank.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    enter_control_groups(LIMITS_CPU)
    cuda = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    figures = {
        "matmul_fp32_flops_per_s": _matmul(torch.float32, device),
        "matmul_bf16_flops_per_s": _matmul(torch.bfloat16, device),
        "copy_bytes_per_s": _copy(device),
    }
    if dist.get_world_size() > 1:
        figures |= _allreduce(device)
    worst = torch.tensor(list(figures.values()), dtype=torch.float64, device=device)
    latency = list(figures).index("allreduce_latency_s") if "allreduce_latency_s" in figures else None
    if latency is not None:
        worst[latency] *= -1
    dist.all_reduce(worst, op=dist.ReduceOp.MIN)
    machines: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(machines, asdict(look(device)))
    if dist.get_rank() == 0:
        known = {name: abs(float(value)) for name, value in zip(figures, worst, strict=True) if value}
        write_json(folder / "probe.json", {"fingerprint": known, "machines": machines})
    dist.destroy_process_group()
    return 0


def look(device: Any) -> Machine:
    """What this rank runs on, with its torch device."""
    if device.type != "cuda":
        return cpu_share(int(os.environ["LOCAL_WORLD_SIZE"]))
    import torch

    name, memory = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
    return Machine(socket.gethostname(), "nccl", name, None, memory, NVIDIA_DRIVER.exists())


def cpu_share(ranks: int) -> Machine:
    """What one of ``ranks`` has of this host's processors and memory."""
    import psutil

    cores, memory = len(os.sched_getaffinity(0)) // ranks, psutil.virtual_memory().total // ranks
    return Machine(socket.gethostname(), "gloo", _cpu_name(), max(cores, 1), memory, NVIDIA_DRIVER.exists())


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, host.machine())


def _timed(work: Callable[[], object], device: object, seconds: float) -> float:
    """Median seconds of one call, over about ``seconds`` of calls after a warm-up."""
    import torch

    def synchronised() -> float:
        begun = time.perf_counter()
        work()
        if getattr(device, "type", "cpu") == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    first = min(synchronised() for _ in range(3))
    return median(synchronised() for _ in range(max(5, min(1000, int(seconds / first)))))


def _matmul(dtype: object, device: object) -> float:
    import torch

    size = _SIZE if getattr(device, "type", "cpu") == "cpu" else 16 * _SIZE
    a = torch.randn(size, size, device=device).to(dtype)  # type: ignore[call-overload]
    return 2.0 * size**3 / _timed(lambda: a @ a, device, 0.4)


def _copy(device: object) -> float:
    import torch

    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=device)  # type: ignore[call-overload]
    target = torch.empty_like(source)
    return 2.0 * _COPY_BYTES / _timed(lambda: target.copy_(source), device, 0.4)


def _allreduce(device: Any) -> dict[str, float]:
    """Latency of a small message; bus bandwidth, which is 0 where a large one took no longer."""
    import torch
    import torch.distributed as dist

    def seconds(size_bytes: int, calls: int) -> float:
        tensor = torch.ones(size_bytes // 4, device=device)
        times = []
        for _ in range(calls):  # a fixed number of calls: every rank must make the same
            begun = time.perf_counter()
            dist.all_reduce(tensor)
            if tensor.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        return median(times[1:])

    large_bytes = _LARGE_BYTES[device.type]
    small, large = seconds(_SMALL_BYTES, 30), seconds(large_bytes, 8)
    return {
        "allreduce_busbw_bytes_per_s": bus_bandwidth(dist.get_world_size(), large_bytes, large - small),
        "allreduce_latency_s": small,
    }


def bus_bandwidth(ranks: int, large_bytes: int, more_s: float) -> float:
    """Bytes per second, when the large message took ``more_s`` longer than the small one, else 0."""
    wire = 2.0 * (ranks - 1) / ranks * (large_bytes - _SMALL_BYTES)
    return wire / more_s if more_s > 0 else 0.0
