"""What a platform does, measured by the ranks of one short run: compute, memory copy, all-reduce.

Every rank computes at the same time, as it will in training. The all-reduce's time over
two message sizes gives latency and bus bandwidth, with 2 (n - 1) / n bytes on the wire
per byte of the tensor (a ring; Thakur et al. 2005, doi 10.1177/1094342005051521).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pretune.collector.evidence import write_json
from pretune.collector.process import LIMITS_CPU, enter_control_groups

_SIZE = 512  # of the square matrices: past the small-matrix losses, milliseconds on one core
_COPY_BYTES = 64 << 20
_SMALL_BYTES, _LARGE_BYTES = 4 << 10, 4 << 20


def run(folder: Path) -> int:
    """On every rank: measure; rank 0 writes ``fingerprint.json`` into ``folder``. Returns an exit code."""
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
    if dist.get_rank() == 0:
        figures = {name: abs(float(value)) for name, value in zip(figures, worst, strict=True)}
        write_json(folder / "fingerprint.json", figures)
    dist.destroy_process_group()
    return 0


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


def _allreduce(device: object) -> dict[str, float]:
    import torch
    import torch.distributed as dist

    def seconds(size_bytes: int, calls: int) -> float:
        tensor = torch.ones(size_bytes // 4, device=device)  # type: ignore[call-overload]
        times = []
        for _ in range(calls):  # a fixed number of calls: every rank must make the same
            begun = time.perf_counter()
            dist.all_reduce(tensor)
            if tensor.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        return median(times[1:])

    small, large = seconds(_SMALL_BYTES, 30), seconds(_LARGE_BYTES, 8)
    ranks = dist.get_world_size()
    wire = 2.0 * (ranks - 1) / ranks * (_LARGE_BYTES - _SMALL_BYTES)
    return {"allreduce_busbw_bytes_per_s": wire / max(large - small, 1e-9), "allreduce_latency_s": small}
