"""NVIDIA's management library: energy, power, clocks, throttling and traffic of this rank's GPU."""

from __future__ import annotations

import os
from typing import Any

from pretune.collector.counters.gpu import GpuCounters, scaled

ALL_LINKS = 2**32 - 1  # NVML's scope of a field that is to be summed over all NVLinks
KIB, KB, MHZ = 1024.0, 1000.0, 1e6
# why the clocks are below what they could be -> NVML's name of its bit
REASONS = {
    "power_cap": "nvmlClocksThrottleReasonSwPowerCap",
    "thermal_software": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "thermal_hardware": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power_brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "sync_boost": "nvmlClocksThrottleReasonSyncBoost",
}


class NvmlCounters(GpuCounters):
    """Energy and NVLink bytes are the driver's own counters; gauges are sampled by a thread meanwhile.

    ``gpu_throttled_share.REASON`` is the share of samples in which that reason held the clocks down.
    """

    name = "nvml"

    def _open(self) -> tuple[Any, Any]:
        try:
            import pynvml
        except ImportError:
            self.missing[self.name] = "pynvml is not installed; pip install nvidia-ml-py"
            return None, None
        self.refusals = (pynvml.NVMLError,)
        try:
            pynvml.nvmlInit()
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(_physical_index(pynvml))
        except (pynvml.NVMLError, ValueError) as error:
            self.missing[self.name] = f"no NVIDIA GPU or driver: {error}"
            return None, None

    def _absolute(self) -> dict[str, float]:
        energy_mj = self._read("gpu_energy_j", "nvmlDeviceGetTotalEnergyConsumption")
        return self._links() | ({} if energy_mj is None else {"gpu_energy_j": energy_mj / 1000})

    def _links(self) -> dict[str, float]:
        """Bytes over all NVLinks, which NVML counts in KiB."""
        ids = {
            "gpu_nvlink_sent_bytes": self._library.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            "gpu_nvlink_received_bytes": self._library.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        }
        asked = [(field, ALL_LINKS) for field in ids.values()]
        found = {}
        for name, field in zip(
            ids, self._read("nvlink", "nvmlDeviceGetFieldValues", asked) or (), strict=False
        ):
            if field.nvmlReturn == self._library.NVML_SUCCESS:
                found[name] = field.value.ullVal * KIB
            else:
                self.missing[f"nvml.{name}"] = str(self._library.NVMLError(field.nvmlReturn))
        return found

    def _sample(self) -> dict[str, float]:
        power_mw = self._read("gpu_power_w", "nvmlDeviceGetPowerUsage")
        busy = self._read("gpu_utilisation", "nvmlDeviceGetUtilizationRates")
        memory = self._read("gpu_memory_used_bytes", "nvmlDeviceGetMemoryInfo")
        sample = {
            "gpu_power_w": None if power_mw is None else power_mw / 1000,
            "gpu_utilisation": None if busy is None else busy.gpu / 100,
            "gpu_memory_busy": None if busy is None else busy.memory / 100,
            "gpu_memory_used_bytes": None if memory is None else float(memory.used),
            **self._clocks(),
            **self._pcie(),
            **self._throttled(),
        }
        return {name: value for name, value in sample.items() if value is not None}

    def _clocks(self) -> dict[str, float | None]:
        kinds = {
            "gpu_sm_clock_hz": self._library.NVML_CLOCK_SM,
            "gpu_memory_clock_hz": self._library.NVML_CLOCK_MEM,
        }
        read = {name: self._read(name, "nvmlDeviceGetClockInfo", kind) for name, kind in kinds.items()}
        return {name: scaled(mhz, MHZ) for name, mhz in read.items()}

    def _pcie(self) -> dict[str, float | None]:
        """NVML's own mean over the last 20 ms, in KB/s."""
        kinds = {
            "gpu_pcie_sent_bytes_per_s": self._library.NVML_PCIE_UTIL_TX_BYTES,
            "gpu_pcie_received_bytes_per_s": self._library.NVML_PCIE_UTIL_RX_BYTES,
        }
        read = {name: self._read(name, "nvmlDeviceGetPcieThroughput", kind) for name, kind in kinds.items()}
        return {name: scaled(rate, KB) for name, rate in read.items()}

    def _throttled(self) -> dict[str, float]:
        bits = self._read("gpu_throttled_share", "nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return {}
        held = {reason: bool(bits & getattr(self._library, name)) for reason, name in REASONS.items()}
        return {f"gpu_throttled_share.{reason}": float(on) for reason, on in held.items()}


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
