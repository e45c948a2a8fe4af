"""What one rank runs on."""

from __future__ import annotations

import os
import platform as host
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.collector.device import NVIDIA_DRIVER


@dataclass(frozen=True)
class Machine:
    """What one rank runs on: its share of the host's cores and memory, or its GPU (no ``cores``)."""

    host: str
    backend: str
    device: str
    cores: int | None
    memory_bytes: int
    nvidia_driver: bool


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
