"""AMD's management library: energy, power, clocks, throttling and traffic of this rank's GPU."""

from __future__ import annotations

import os
from typing import Any

from pretune.collector.counters.gpu import GpuCounters, scaled

KB, MIB, MHZ, MICRO = 1000.0, 2.0**20, 1e6, 1e-6


class AmdCounters(GpuCounters):
    """Energy and xGMI bytes are the driver's accumulators; gauges are sampled by a thread meanwhile."""

    name = "amdsmi"

    def _open(self) -> tuple[Any, Any]:
        try:
            import amdsmi
        except ImportError:
            self.missing[self.name] = "amdsmi is not installed; it comes with ROCm"
            return None, None
        except (KeyError, OSError) as error:  # PyPI's package raises either when ROCm's library is not there
            self.missing[self.name] = f"ROCm's amd_smi library is missing ({type(error).__name__}: {error})"
            return None, None
        self.refusals = (amdsmi.AmdSmiException, AttributeError)  # an older library lacks some calls
        try:
            amdsmi.amdsmi_init()
            handles = amdsmi.amdsmi_get_processor_handles()
            return amdsmi, handles[_physical_index()]
        except (amdsmi.AmdSmiException, IndexError, ValueError) as error:
            self.missing[self.name] = f"no AMD GPU or driver: {error}"
            return None, None

    def _absolute(self) -> dict[str, float]:
        energy = self._read("gpu_energy_j", "amdsmi_get_energy_count")
        metrics = self._read("xgmi", "amdsmi_get_gpu_metrics_info") or {}
        found = {}
        if energy is not None:  # the resolution is in microjoules
            found["gpu_energy_j"] = energy["energy_accumulator"] * energy["counter_resolution"] * MICRO
        for way, key in (("sent", "xgmi_write_data_acc"), ("received", "xgmi_read_data_acc")):
            links = [value for value in metrics.get(key, ()) if isinstance(value, int | float)]
            if links:
                found[f"gpu_xgmi_{way}_bytes"] = sum(links) * KB
        return found

    def _sample(self) -> dict[str, float]:
        power = self._read("gpu_power_w", "amdsmi_get_power_info") or {}
        busy = self._read("gpu_utilisation", "amdsmi_get_gpu_activity") or {}
        memory = self._read("gpu_memory_used_bytes", "amdsmi_get_gpu_vram_usage") or {}
        pcie = self._read("gpu_pcie", "amdsmi_get_gpu_pci_throughput") or {}
        sample = {
            "gpu_power_w": _first(power, "current_socket_power", "average_socket_power", "socket_power"),
            "gpu_utilisation": scaled(busy.get("gfx_activity"), 0.01),
            "gpu_memory_busy": scaled(busy.get("umc_activity"), 0.01),
            "gpu_memory_used_bytes": scaled(memory.get("vram_used"), MIB),
            "gpu_pcie_sent_bytes_per_s": scaled(pcie.get("sent"), 1.0),
            "gpu_pcie_received_bytes_per_s": scaled(pcie.get("received"), 1.0),
            **self._clocks(),
            **self._throttled(),
        }
        return {name: value for name, value in sample.items() if value is not None}

    def _clocks(self) -> dict[str, float | None]:
        kinds = {
            "gpu_sm_clock_hz": self._library.AmdSmiClkType.GFX,
            "gpu_memory_clock_hz": self._library.AmdSmiClkType.MEM,
        }
        read = {name: self._read(name, "amdsmi_get_clock_info", kind) or {} for name, kind in kinds.items()}
        return {name: scaled(_first(clock, "clk", "cur_clk"), MHZ) for name, clock in read.items()}

    def _throttled(self) -> dict[str, float]:
        status = self._read("gpu_throttled_share", "amdsmi_get_violation_status") or {}
        reasons = {
            "power_cap": "active_ppt_pwr",
            "thermal_software": "active_socket_thrm",
            "thermal_hardware": "active_prochot_thrm",
        }
        return {
            f"gpu_throttled_share.{reason}": float(status[key])
            for reason, key in reasons.items()
            if isinstance(status.get(key), bool | int)
        }


def _first(found: dict[str, Any], *keys: str) -> float | None:
    """The first of ``keys`` that has a number: what a GPU lacks is "N/A", and names differ by version."""
    return next((float(found[key]) for key in keys if isinstance(found.get(key), int | float)), None)


def _physical_index() -> int:
    """AMD SMI counts all GPUs of the host; the visible ones are listed for LOCAL_RANK to count."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    visible = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES")
    return int(visible.split(",")[local]) if visible else local
