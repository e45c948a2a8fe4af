"""A command that runs, seen from outside: which of its processes trains, and on what."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.collector.device import NVIDIA_DRIVER
from pretune.collector.integrations.here import platform_of
from pretune.collector.probe.machine import Machine, cpu_share
from pretune.collector.process import family
from pretune.datasets.platform import Platform
from pretune.errors import InputError

if TYPE_CHECKING:
    import psutil

AMD_DRIVER = Path("/dev/kfd")  # is there when the driver is


class Outside:
    """``trainer()`` is asked over and over while the command with ``pid`` runs; what it saw of the ranks'
    environment stays known in ``environ``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.environ: Mapping[str, str] = {}

    def trainer(self) -> int:
        """The process that trains: of the lowest rank here (``RANK``, as every launcher sets it), else of all
        processes of the command, the one that has used the most processor time."""
        seen = [(each, environ, _busy_s(each)) for each in family(self.pid) for environ in [_environ(each)]]
        ranks = [int(environ["RANK"]) for _, environ, _ in seen if environ.get("RANK", "").isdigit()]
        if ranks:
            seen = [each for each in seen if each[1].get("RANK") == str(min(ranks))]
        if not seen:
            return self.pid
        process, environ, _ = max(seen, key=lambda each: each[2])
        if ranks or not self.environ:
            self.environ = environ
        return process.pid

    def platform(self) -> Platform:
        """What it ran on, by this machine's devices and the ranks' environment. Links and a CPU's peak stay
        unknown. Raises :class:`InputError` as :func:`told_devices` does."""
        local = int(self.environ.get("LOCAL_WORLD_SIZE") or self.environ.get("LOCAL_SIZE") or 1)
        world = int(self.environ.get("WORLD_SIZE") or local)
        on_cpu = self.environ.get("DS_ACCELERATOR") == "cpu" or self.environ.get("CUDA_VISIBLE_DEVICES") == ""
        machine = None if on_cpu else told_devices()
        return platform_of(machine or cpu_share(local), local, world)


def told_devices() -> Machine | None:
    """This machine's GPU, or None. Raises :class:`InputError` where its name cannot be had."""
    if AMD_DRIVER.exists() and not NVIDIA_DRIVER.exists():
        raise InputError("record: what GPU this machine has cannot be told from outside; give --platform")
    if not NVIDIA_DRIVER.exists():
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name, memory = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except ImportError:
        raise InputError(
            "record: pynvml is not installed; pip install nvidia-ml-py, or give --platform"
        ) from None
    except pynvml.NVMLError:
        return None
    return Machine(socket.gethostname(), "nccl", name, None, memory, True)


def _environ(process: psutil.Process) -> Mapping[str, str]:
    import psutil

    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _busy_s(process: psutil.Process) -> float:
    import psutil

    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
