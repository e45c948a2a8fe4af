"""This process's device and compiler, read without importing torch: not loaded, there is nothing to read."""

from __future__ import annotations

import contextlib
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
    """The three figures of a Trial, of this rank so far. On a CPU ``device`` alone: the peak resident set
    beyond what it was at :func:`count_memory_from_here`.

    On a GPU ``device`` is what the driver counts as used now, other processes included.
    """
    allocated = reserved = None
    if cuda := _cuda():
        free, total = cuda.mem_get_info()
        allocated, reserved = int(cuda.max_memory_allocated()), int(cuda.max_memory_reserved())
    return {
        "peak_memory_allocated_bytes": allocated,
        "peak_memory_reserved_bytes": reserved,
        "peak_memory_device_bytes": total - free if cuda else _resident_beyond(),
    }


_resident_before = 0


def count_memory_from_here() -> None:
    """On a CPU, count the resident set from now on: what training takes beyond its libraries, as on a GPU."""
    global _resident_before
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM (proc_pid_clear_refs(5))
    _resident_before = _status_bytes("VmRSS") or 0


def _resident_beyond() -> int | None:
    peak = _status_bytes("VmHWM")
    return None if peak is None else max(peak - _resident_before, 0)


def _status_bytes(field: str) -> int | None:
    """A field of proc_pid_status(5) for this process; None where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def compilations() -> int:
    """Frames that torch.compile worked on so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["frames"]["total"]) if dynamo else 0


def compile_seconds() -> float:
    """Seconds that torch.compile spent so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return float(sum(dynamo.compilation_time_metrics.get("_compile.compile_inner", []))) if dynamo else 0.0
