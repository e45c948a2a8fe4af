"""NVIDIA's management library: energy, power, utilisation and memory of this rank's GPU."""

from __future__ import annotations

import os
import threading
from statistics import fmean
from typing import Any

from pretune.collector.counters.base import CounterProvider

SAMPLE_S = 0.2  # NVML itself refreshes utilisation every 1/6 to 1 s, power every 0.1 s


class NvmlCounters(CounterProvider):
    """Energy is the driver's own counter where it has one; gauges are sampled by a thread meanwhile."""

    name = "nvml"

    def __init__(self) -> None:
        super().__init__()
        self._nvml, self._device = self._open()
        self._samples: list[dict[str, float]] = []
        self._ended = threading.Event()

    def _open(self) -> tuple[Any, Any]:
        try:
            import pynvml
        except ImportError:
            self.missing[self.name] = "pynvml is not installed; pip install nvidia-ml-py"
            return None, None
        try:
            pynvml.nvmlInit()
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(_physical_index(pynvml))
        except (pynvml.NVMLError, ValueError) as error:
            self.missing[self.name] = f"no NVIDIA GPU or driver: {error}"
            return None, None

    def start(self) -> None:
        if self._nvml is None:
            return
        self._energy_mj = self._energy()
        self._samples.clear()
        self._ended.clear()
        self._thread = threading.Thread(target=self._watch, name="pretune-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        if self._nvml is None:
            return {}
        self._ended.set()
        self._thread.join()
        energy_mj = self._energy()
        self._samples.append(self._sample())
        names = {name for sample in self._samples for name in sample}
        readings = {name: fmean(s[name] for s in self._samples if name in s) for name in names}
        if energy_mj is not None and self._energy_mj is not None:
            readings["gpu_energy_j"] = (energy_mj - self._energy_mj) / 1000
        return readings

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._samples.append(self._sample())

    def _energy(self) -> float | None:
        value = self._read("gpu_energy_j", "nvmlDeviceGetTotalEnergyConsumption")
        return None if value is None else float(value)

    def _sample(self) -> dict[str, float]:
        power = self._read("gpu_power_w", "nvmlDeviceGetPowerUsage")
        busy = self._read("gpu_utilisation", "nvmlDeviceGetUtilizationRates")
        memory = self._read("gpu_memory_used_bytes", "nvmlDeviceGetMemoryInfo")
        sample = {
            "gpu_power_w": None if power is None else power / 1000,
            "gpu_utilisation": None if busy is None else busy.gpu / 100,
            "gpu_memory_used_bytes": None if memory is None else float(memory.used),
        }
        return {name: value for name, value in sample.items() if value is not None}

    def _read(self, reading: str, function: str) -> Any:
        """None, and the reason in ``missing``, where this GPU does not support the reading."""
        try:
            return getattr(self._nvml, function)(self._device)
        except self._nvml.NVMLError as error:
            self.missing[f"nvml.{reading}"] = str(error)
            return None


def _physical_index(pynvml: Any) -> int:
    """NVML counts all GPUs of the host; CUDA_VISIBLE_DEVICES says which of them LOCAL_RANK counts."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible:
        return local
    entry = visible.split(",")[local] if local < len(visible.split(",")) else ""
    if entry.isdigit():
        return int(entry)
    handle = pynvml.nvmlDeviceGetHandleByUUID(entry)
    return int(pynvml.nvmlDeviceGetIndex(handle))
