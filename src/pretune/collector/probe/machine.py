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
    import psutil
    import torch

    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    if device.type == "cuda":
        name, cores = torch.cuda.get_device_name(device), None
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        name, cores = _cpu_name(), max(len(os.sched_getaffinity(0)) // ranks, 1)
        memory = psutil.virtual_memory().total // ranks
    backend = "nccl" if device.type == "cuda" else "gloo"
    return Machine(socket.gethostname(), backend, name, cores, memory, NVIDIA_DRIVER.exists())


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, host.machine())
