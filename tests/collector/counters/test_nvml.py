"""NVML's readings, in the library's own types: this checks units and names, not a GPU."""

import time

import pytest

from pretune.collector.counters.nvml import NvmlCounters

pynvml = pytest.importorskip("pynvml")


def answers(monkeypatch, **functions):
    for name, function in functions.items():
        monkeypatch.setattr(pynvml, name, function)


def field(value, code=pynvml.NVML_SUCCESS):
    made = pynvml.c_nvmlFieldValue_t()
    made.nvmlReturn, made.value.ullVal = code, value
    return made


def refuse(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def gpu(monkeypatch):
    energy_mj, sent_kib = iter([5_000, 9_000]), iter([10, 14])
    answers(
        monkeypatch,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu {index}",
        nvmlDeviceGetTotalEnergyConsumption=lambda _: next(energy_mj),
        nvmlDeviceGetFieldValues=lambda *_: [
            field(next(sent_kib)),
            field(0, pynvml.NVML_ERROR_NOT_SUPPORTED),
        ],
        nvmlDeviceGetPowerUsage=lambda _: 350_000,
        nvmlDeviceGetUtilizationRates=lambda _: pynvml.c_nvmlUtilization_t(gpu=80, memory=40),
        nvmlDeviceGetMemoryInfo=lambda _: pynvml.c_nvmlMemory_t(total=80, free=60, used=20),
        nvmlDeviceGetClockInfo=lambda _, kind: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[
            kind
        ],
        nvmlDeviceGetPcieThroughput=lambda _, kind: {
            pynvml.NVML_PCIE_UTIL_TX_BYTES: 7,
            pynvml.NVML_PCIE_UTIL_RX_BYTES: 9,
        }[kind],
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: pynvml.nvmlClocksThrottleReasonSwPowerCap,
    )
    return NvmlCounters()


def test_readings_are_in_the_units_of_their_names(gpu):
    gpu.start()
    time.sleep(0.3)
    readings = gpu.stop()
    assert readings.totals == {"gpu_energy_j": 4.0, "gpu_nvlink_sent_bytes": 4096.0}
    assert "gpu_nvlink_received_bytes" in str(gpu.missing)
    assert readings.means["gpu_power_w"] == 350
    assert (readings.means["gpu_utilisation"], readings.means["gpu_memory_busy"]) == (0.8, 0.4)
    assert readings.means["gpu_memory_used_bytes"] == 20
    assert readings.means["gpu_sm_clock_hz"] == 1.98e9
    assert readings.means["gpu_pcie_received_bytes_per_s"] == 9000
    assert readings.means["gpu_throttled_share.power_cap"] == 1
    assert readings.means["gpu_throttled_share.thermal_hardware"] == 0


def test_what_a_gpu_does_not_support_is_missing_and_the_rest_is_read(gpu, monkeypatch):
    answers(monkeypatch, nvmlDeviceGetTotalEnergyConsumption=refuse, nvmlDeviceGetPcieThroughput=refuse)
    gpu.start()
    readings = gpu.stop()
    assert "gpu_energy_j" not in readings.totals
    assert {"nvml.gpu_energy_j", "nvml.gpu_pcie_sent_bytes_per_s"} <= gpu.missing.keys()
    assert readings.means["gpu_power_w"] == 350


@pytest.mark.usefixtures("gpu")
def test_the_rank_reads_the_gpu_that_is_visible_to_it(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert NvmlCounters()._device == "gpu 6"
