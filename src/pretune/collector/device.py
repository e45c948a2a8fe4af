"""This process's device and compiler, read without importing torch: not loaded, there is nothing to read."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any


def _cuda() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def synchronize() -> None:
    """Wait for the device: the host only enqueues work there. Nothing on a CPU."""
    if cuda := _cuda():
        cuda.synchronize()


def reserved_bytes() -> int:
    """What torch's caching allocator holds on the device now; 0 on a CPU, which has none."""
    return int(cuda.memory_reserved()) if (cuda := _cuda()) else 0


def peak_memory() -> dict[str, int | None]:
    """The three figures of a Trial, of this rank so far. On a CPU ``device`` alone: the peak resident set.

    On a GPU ``device`` is what the driver counts as used now, other processes included.
    """
    allocated = reserved = None
    if cuda := _cuda():
        free, total = cuda.mem_get_info()
        allocated, reserved = int(cuda.max_memory_allocated()), int(cuda.max_memory_reserved())
    return {
        "peak_memory_allocated_bytes": allocated,
        "peak_memory_reserved_bytes": reserved,
        "peak_memory_device_bytes": total - free if cuda else peak_resident_bytes(),
    }


def peak_resident_bytes() -> int | None:
    """VmHWM of this process (proc_pid_status(5)); None where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def compilations() -> int:
    """Frames that torch.compile worked on so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["frames"]["total"]) if dynamo else 0


def compile_seconds() -> float:
    """Seconds that torch.compile spent so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return float(sum(dynamo.compilation_time_metrics.get("_compile.compile_inner", []))) if dynamo else 0.0
