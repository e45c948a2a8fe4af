"""AMD SMI's readings, as its Python package answers (7.0): this checks units and names, not a GPU."""

import builtins
import sys
from enum import IntEnum
from types import SimpleNamespace

import pytest

from pretune.collector.counters.amd import AmdCounters


class AmdSmiException(Exception):
    pass


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


@pytest.fixture
def smi(monkeypatch):
    ticks = iter([1_000_000, 3_000_000])
    kilobytes = iter([[1, 2, "N/A"], [11, 22, "N/A"]])
    clocks = {AmdSmiClkType.GFX: {"clk": 2100}, AmdSmiClkType.MEM: {"clk": "N/A"}}
    made = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        AmdSmiClkType=AmdSmiClkType,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["first", "second"],
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": next(ticks), "counter_resolution": 15.3},
        amdsmi_get_gpu_metrics_info=lambda _: {
            "xgmi_write_data_acc": next(kilobytes),
            "xgmi_read_data_acc": ["N/A"],
        },
        amdsmi_get_power_info=lambda _: {"current_socket_power": "N/A", "average_socket_power": 560},
        amdsmi_get_gpu_activity=lambda _: {"gfx_activity": 95, "umc_activity": 30},
        amdsmi_get_gpu_vram_usage=lambda _: {"vram_total": 196592, "vram_used": 1024},
        amdsmi_get_gpu_pci_throughput=lambda _: (_ for _ in ()).throw(AmdSmiException("not supported")),
        amdsmi_get_clock_info=lambda _, kind: clocks[kind],
        amdsmi_get_violation_status=lambda _: {"active_ppt_pwr": True, "active_socket_thrm": "N/A"},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", made)
    return made


@pytest.mark.usefixtures("smi")
def test_readings_are_in_the_units_of_their_names():
    provider = AmdCounters()
    provider.start()
    readings = provider.stop()
    assert readings.totals["gpu_energy_j"] == pytest.approx(2_000_000 * 15.3e-6)
    assert readings.totals["gpu_xgmi_sent_bytes"] == 30_000
    assert "gpu_xgmi_received_bytes" not in readings.totals
    assert readings.means == {
        "gpu_power_w": 560,
        "gpu_utilisation": pytest.approx(0.95),
        "gpu_memory_busy": pytest.approx(0.3),
        "gpu_memory_used_bytes": 2**30,
        "gpu_sm_clock_hz": 2.1e9,
        "gpu_throttled_share.power_cap": 1.0,
    }
    assert provider.missing == {"amdsmi.gpu_pcie": "not supported"}


@pytest.mark.usefixtures("smi")
def test_the_rank_reads_the_gpu_that_is_visible_to_it(monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert AmdCounters()._device == "second"


@pytest.mark.parametrize("error", [ImportError("none"), KeyError("ROCM_HOME"), OSError("libamd_smi.so")])
def test_a_machine_without_the_library_says_so(error, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "amdsmi":
            raise error
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    provider = AmdCounters()
    provider.start()
    assert provider.stop().means == {}
    assert "ROCm" in provider.missing["amdsmi"]
