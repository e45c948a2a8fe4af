"""What one device does by itself, while all others do the same, as in training: products and copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pretune.collector.device import synchronize

DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # more than caches hold
_HOST_COPY_BYTES = 256 << 20
_SECONDS = 0.4  # of calls, for one figure
_SLOW_S = 0.25  # a product that takes longer is the last: the next size takes eight times as long


def products(precision: str, sizes: tuple[int, ...], device: Any) -> dict[int, float]:
    """Seconds of one product of two square matrices by their edge; fewer sizes where products are slow."""
    import torch

    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    found: dict[int, float] = {}
    for size in sizes:
        a = torch.randn(size, size, device=device).to(getattr(torch, DTYPES[precision]))
        found[size] = timed(partial(torch.matmul, a, a))
        if found[size] > _SLOW_S:
            break
    torch.set_float32_matmul_precision("highest")
    return found


def copies(device: Any) -> dict[str, float]:
    """Bytes per second within the device's memory, read and write counted; on a GPU to and from the host."""
    import torch

    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = {"device": 2.0 * len(source) / timed(partial(target.copy_, source))}
    if device.type == "cuda":
        host = torch.ones(_HOST_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        there = target[:_HOST_COPY_BYTES]
        found["host_to_device"] = len(host) / timed(partial(there.copy_, host, non_blocking=True))
        found["device_to_host"] = len(host) / timed(partial(host.copy_, there, non_blocking=True))
    return found


def timed(work: Callable[[], object]) -> float:
    """:func:`usual` seconds of one call to its end on the device, after a warm-up."""
    first = min(seconds(work) for _ in range(3))
    return usual([seconds(work) for _ in range(max(5, min(1000, int(_SECONDS / first))))])


def usual(times: list[float]) -> float:
    """The lower quartile: what else runs on the hosts only ever adds, and is no property of theirs."""
    return sorted(times)[len(times) // 4]


def seconds(work: Callable[[], object]) -> float:
    """Of one call, to its end on the device."""
    begun = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begun
