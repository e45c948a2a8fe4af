"""Logs of NeMo 1, NeMo 2 and Megatron-Bridge, and Megatron-Bridge's tables."""

from __future__ import annotations

import pytest

from pretune.datasets.importers.megatron_bridge import MegatronBridgeTable
from pretune.datasets.importers.nemo import NeMoLog
from pretune.errors import InputError


def test_nemo_2_states_time_batch_memory_and_groups(imported):
    (run,), _ = imported(NeMoLog(), "nemo/nemo2_25.09.log")
    said = {"platform.devices": 16, "knob.dp": 2, "knob.tp": 4, "knob.pp": 2, "knob.cp": 1}
    said |= {"workload.global_batch_sequences": 128, "peak_memory_allocated_bytes": 70833405952}
    assert said.items() <= run.values.items()
    assert run.values["step_time_s"] == pytest.approx(12.2, rel=0.01)
    speed = 128 * 8192 / 12.2 / 16
    assert run.values["tokens_per_s_per_device"] == pytest.approx(speed, rel=0.02)
    assert "workload.global_batch_tokens" not in run.values  # the log tells no sequence length


def test_nemo_1_s_progress_bar_counts_a_step_once(imported):
    (run,), _ = imported(NeMoLog(), "nemo/nemo1_progress_bar.log")  # each step is drawn twice
    assert len(run.values["window_times_s"]) == 23
    assert run.values["step_time_s"] == pytest.approx(5.0, rel=0.01)
    assert run.values["workload.global_batch_tokens"] == 64 * 4096
    assert (run.values["knob.micro_batch"], run.values["model.ffn_size"]) == (2, 11008)


def test_megatron_bridge_s_own_line_goes_with_megatron_s(imported):
    (run,), _ = imported(NeMoLog(), "nemo/megatron_bridge_25.11.log")
    assert run.values["step_time_s"] == pytest.approx(5.39, rel=0.02)
    assert run.values["counter.model_flops_per_s_per_device"] == pytest.approx(2347e12, rel=0.02)


def test_tables_of_either_layout(imported):
    runs, (aside,) = imported(MegatronBridgeTable(), "megatron-bridge/performance_25.11_and_26.08.md")
    named = [
        (run.values["model.name"], run.values["accelerator.name"], run.values["software.nemo"])
        for run in runs
    ]
    assert named[0] == ("Imagined_30B_a3B", "X100", "26.08")
    assert named[1:] == [("LLAMA3_8B", "X90", "25.11")] * 2 + [("LLAMA3_70B", "X90", "25.11")]
    assert [run.values["tokens_per_s_per_device"] for run in runs] == [40000, 14000, 13500, 1600]
    assert [run.values["knob.precision_recipe"] for run in runs] == ["MXFP8", "FP8-CS", "FP8-MX", "BF16"]
    assert (aside.line, "14 cells under 15 headings" in aside.reason) == (19, True)


def test_another_markdown_file_is_refused(written):
    with pytest.raises(InputError, match="has no table with the columns"):
        written(MegatronBridgeTable(), "# Results\n\n| A | B |\n|---|---|\n| 1 | 2 |\n")
