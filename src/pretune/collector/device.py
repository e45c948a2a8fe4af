"""This process's device and compiler, read without importing torch: not loaded, there is nothing to read."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NVIDIA_DRIVER = Path("/dev/nvidiactl")  # is there when the driver is


def _cuda() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def synchronize() -> None:
    """Wait for the device: the host only enqueues work there. Nothing on a CPU."""
    if cuda := _cuda():
        cuda.synchronize()


def mark() -> Any:
    """Now, or when a GPU will have done what was enqueued so far: nothing waits. ``moments`` reads it."""
    if not (cuda := _cuda()):
        return time.perf_counter()
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


def moments(marks: Sequence[Any]) -> list[float]:
    """The times of marks by ``time.perf_counter``. Waits for the device, once for all of them."""
    anchor = mark()
    synchronize()
    now_s = time.perf_counter()
    return [at if isinstance(at, float) else now_s - at.elapsed_time(anchor) / 1000 for at in marks]


def reserved_bytes() -> int:
    """What torch's caching allocator holds on the device now; 0 on a CPU, which has none."""
    return int(cuda.memory_reserved()) if (cuda := _cuda()) else 0


class PeakMemory:
    """The peak memory of this rank from now on: the three figures of a Trial.

    On a GPU, ``device`` is the most that the driver counted as used there, other processes
    included, whenever ``sample`` was called. On a CPU it alone is known: the peak of the
    private and shared pages, without mapped files (libraries), less those that are there now.
    Made after the libraries are imported it is what a memory control group entered now
    would count, the same in a fresh process and in a forked one.
    """

    def __init__(self, late: bool = False) -> None:
        """``late``: the model is there already; on a CPU what it takes can then not be told from the rest."""
        self._late = late
        self._baseline_bytes = self._used_bytes = 0
        if cuda := _cuda():
            cuda.reset_peak_memory_stats()
        else:
            with contextlib.suppress(OSError):  # a kernel or container without it: the old peak stays
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            resident = _resident_bytes()
            self._baseline_bytes = resident.get("RssAnon", 0) + resident.get("RssShmem", 0)

    def sample(self) -> None:
        """Look at the GPU: its driver keeps no peak. Nothing on a CPU, whose kernel does."""
        if cuda := _cuda():
            free, total = cuda.mem_get_info()
            self._used_bytes = max(self._used_bytes, total - free)

    def now(self) -> int | None:
        """What :meth:`read` counts as the device's, at this moment; None where nothing tells."""
        if cuda := _cuda():
            free, total = cuda.mem_get_info()
            return int(total - free)
        resident = _resident_bytes()
        return resident["RssAnon"] + resident["RssShmem"] - self._baseline_bytes if resident else None

    def read(self) -> dict[str, int | None]:
        allocated = reserved = used = None
        self.sample()
        if cuda := _cuda():
            allocated, reserved = int(cuda.max_memory_allocated()), int(cuda.max_memory_reserved())
            used = self._used_bytes
        elif not self._late and (resident := _resident_bytes()):
            used = max(resident["VmHWM"] - resident["RssFile"] - self._baseline_bytes, 0)
        return {
            "peak_memory_allocated_bytes": allocated,
            "peak_memory_reserved_bytes": reserved,
            "peak_memory_device_bytes": used,
        }


def _resident_bytes() -> dict[str, int]:
    """VmHWM, VmRSS, RssAnon, RssFile, RssShmem of this process (proc_pid_status(5)); empty without /proc."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return {}
    found = re.findall(r"^(VmHWM|VmRSS|Rss\w+):\s+(\d+) kB", status, re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}


def compilations() -> int:
    """Frames that torch.compile worked on so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["frames"]["total"]) if dynamo else 0


def compile_seconds() -> float:
    """Seconds that torch.compile spent so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return float(sum(dynamo.compilation_time_metrics.get("_compile.compile_inner", []))) if dynamo else 0.0
