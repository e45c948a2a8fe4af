"""torchtitan's logs over its versions."""

from __future__ import annotations

import pytest

from pretune.datasets.importers.torchtitan import TorchTitanLog, stated


def test_coloured_lines_of_two_ranks_are_one_run(imported):
    (run,), _ = imported(TorchTitanLog(), "torchtitan/2025_two_ranks.log")
    said = {"model.name": "llama3 8B", "model.kv_heads": 8, "knob.tp": 2, "knob.dp": 4, "platform.devices": 8}
    said |= {"workload.global_batch_tokens": 16 * 8192, "knob.accumulation": 2, "workload.precision": "bf16"}
    said |= {"accelerator.name": "NVIDIA H100", "knob.compile": True, "status": "ok"}
    assert said.items() <= run.values.items()
    # 900 at first, 3600 with the checkpoint in it, 6000 otherwise; the validation's 15,000 is no training
    assert run.values["tokens_per_s_per_device"] == pytest.approx(6000, rel=0.02)
    assert run.values["step_time_s"] * run.values["tokens_per_s_per_device"] * 8 == pytest.approx(16 * 8192)
    assert run.values["peak_memory_reserved_bytes"] == int(60.5 * 2**30)


def test_the_first_versions_said_wps(imported):
    (run,), _ = imported(TorchTitanLog(), "torchtitan/2024_wps.log")
    assert run.values["tokens_per_s_per_device"] == pytest.approx(3000, rel=0.02)
    assert run.values["knob.dp"] == 8
    assert "model.kv_heads" not in run.values  # None: as many as heads


def test_a_run_that_never_made_a_step_is_recorded_with_its_cause(imported):
    (run,), _ = imported(TorchTitanLog(), "torchtitan/2025_oom.log")
    assert run.values["status"] == "oom"
    assert (run.values["knob.micro_batch"], run.values["knob.tp"], run.values["knob.dp"]) == (8, 4, 2)
    assert "tokens_per_s_per_device" not in run.values


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ("dim=4096, n_layers=32, multiple_of=1024, ffn_dim_multiplier=1.3", 14336),  # Llama 3 8B
        ("dim=8192, n_layers=80, multiple_of=4096, ffn_dim_multiplier=1.3", 28672),  # Llama 3 70B
        ("dim=4096, n_layers=32, multiple_of=256, ffn_dim_multiplier=None", 11008),  # Llama 2 7B
    ],
)
def test_the_feed_forward_size_of_published_llamas(arguments, size):
    assert stated(f"INFO - Building llama3 x with ModelArgs({arguments})")["model.ffn_size"] == size
