"""Published measurements become what they say, in the store's columns, and nothing more."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import published
import pytest

HEADER = (
    "source_id row_id framework framework_version accelerator accelerators_total "
    "accelerators_per_node model_name params_b n_layers hidden_size n_heads "
    "n_kv_heads ffn_hidden_size vocab_size n_experts experts_topk seq_len "
    "global_batch_sequences micro_batch_sequences grad_accum dp tp pp "
    "vp cp ep sequence_parallel zero_stage sharding "
    "offload activation_checkpointing precision attention_impl compile comm_knobs "
    "tokens_per_s_total tokens_per_s_per_accelerator step_time_s peak_memory_gb status notes "
)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A row of the shared header with only these fields, read."""

    def of(**fields: object) -> dict[str, object]:
        row = {"source_id": "s", "row_id": "s-1", "status": "ok"} | fields
        folder = tmp_path / "data" / "llm_pretraining"
        folder.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({name: [row.get(name)] for name in HEADER.split()}, strict=False).write_csv(
            folder / "s.csv"
        )
        monkeypatch.setenv("PRETUNE_SHARED", str(tmp_path))
        return published.read("s").row(0, named=True)

    return of


def test_what_is_empty_stays_null(read) -> None:  # type: ignore[no-untyped-def]
    row = read(accelerator="A100", accelerators_total=8, accelerators_per_node=8, model_name="unheard-of")
    stated = {name for name, value in row.items() if value is not None}
    assert not any(name.startswith(("knob.", "model.", "workload.")) for name in stated - {"model.name"})
    assert row["accelerator.memory_bytes"] is None  # of 40 GB or 80
    assert row["peak_flops_per_s.bf16"] == 312e12


@pytest.mark.parametrize(
    ("accelerator", "total", "per_node", "local", "nodes"),
    [
        ("A100-SXM-80GB", 64, 8, 8, 8),
        ("A100", 4, 8, 4, 1),
        ("GB200", 64, 4, 64, 1),  # one rack's NVLink
        ("GB200", 128, 4, 64, 2),  # racks are shared evenly
        ("GB300", 72, 4, 72, 1),
        ("TPU-v5e", 1024, None, 256, 4),
        ("A800-80GB", 16, None, None, None),
    ],
)
def test_devices_per_node_are_those_that_the_fast_link_joins(  # type: ignore[no-untyped-def]
    read, accelerator: str, total: int, per_node: int | None, local: int | None, nodes: int | None
) -> None:
    row = read(accelerator=accelerator, accelerators_total=total, accelerators_per_node=per_node)
    assert (row["platform.devices_per_node"], row["platform.nodes"]) == (local, nodes)


@pytest.mark.parametrize(
    ("accelerator", "name", "memory", "fp8"),
    [
        ("A100-SXM-40GB", "A100-40GBx8x1", 40 * 2**30, None),
        ("A100-SXM-80GB", "A100-80GBx8x1", 80 * 2**30, None),
        ("H200-NVL-141GB", "H200-NVLx8x1", 141 * 2**30, 1670.5e12),
        ("H200-SXM-141GB", "H200-141GBx8x1", 141 * 2**30, 1978.9e12),
        ("Ascend-910B (Atlas 900 A2 PODc)", "Ascend-910Bx8x1", None, None),
        (None, None, None, None),
    ],
)
def test_figures_are_those_of_the_whole_name(  # type: ignore[no-untyped-def]
    read, accelerator: str | None, name: str | None, memory: int | None, fp8: float | None
) -> None:
    row = read(accelerator=accelerator, accelerators_total=8, accelerators_per_node=8)
    assert row["platform.name"] == name
    assert row["accelerator.memory_bytes"] == memory
    assert row["peak_flops_per_s.fp8"] == fp8


@pytest.mark.parametrize(
    ("fields", "ffn", "gated"),
    [
        ({"model_name": "llama-13B", "hidden_size": 5120}, 13824, True),
        ({"model_name": "qwen3-30b-a3b", "n_experts": 128, "ffn_hidden_size": 6144}, 768, True),
        ({"model_name": "gpt-oss-120b", "n_experts": 128, "ffn_hidden_size": 2880}, 2880, True),
        ({"model_name": "gpt-175b", "hidden_size": 12288}, None, False),
        ({"model_name": "deepseekv4-flash"}, None, True),
    ],
)
def test_a_named_model_has_its_authors_feed_forward(  # type: ignore[no-untyped-def]
    read, fields: dict[str, object], ffn: int | None, gated: bool
) -> None:
    row = read(**fields)
    assert (row["model.ffn_size"], row["model.gated_mlp"]) == (ffn, gated)


def test_memory_is_in_the_unit_and_of_the_kind_that_was_published(read) -> None:  # type: ignore[no-untyped-def]
    kinds = {
        "nanotron_ultrascale": ("allocated", 2**30),
        "megatron_ci_tests": ("allocated", 1e9),
        "torchtitan": ("reserved", 2**30),
        "flagperf": ("device", 2**30),
    }
    for source, (kind, unit) in kinds.items():
        row = read(source_id=source, peak_memory_gb=3)
        found = {name: row[f"peak_memory_{name}_bytes"] for name in ("allocated", "reserved", "device")}
        assert {name for name, value in found.items() if value is not None} == {kind}
        assert found[kind] == 3 * unit


def test_words_of_knobs_are_the_stores_and_further_settings_keep_theirs(read) -> None:  # type: ignore[no-untyped-def]
    row = read(
        source_id="mosaic_llm_foundry",
        precision="mxfp8",
        sharding="FSDP",
        notes="LoRA Performance",
        comm_knobs='{"fsdp_mixed_precision": "DEFAULT", "overlap-grad-reduce": true, "freq_ghz": 2.2}',
    )
    assert row["workload.precision"] == "fp8"
    assert row["knob.low_precision"] == "mxfp8"
    assert row["knob.zero_stage"] == 3
    assert row["knob.tuning"] == "lora"
    assert row["knob.communication_data_type"] == "fp32"
    assert (row["knob.overlap_comm"], row["knob.freq_ghz"]) == (True, 2.2)
    kept = read(source_id="aleph_alpha_layouts", attention_impl="fused", status="oom", step_time_s=1.0)
    assert kept["knob.attention"] == "fused_softmax"
    assert (kept["status"], kept["step_time_s"]) == ("oom", None)


@pytest.mark.shared
def test_every_source_is_read_and_its_figures_agree() -> None:
    if not published.data_folder().is_dir():
        pytest.skip("no published measurements: set PRETUNE_SHARED")
    for name in published.sources():
        frame = published.read(name)
        devices = frame["platform.devices_per_node"] * frame["platform.nodes"]
        ratio = (frame["tokens_per_s_per_device"] * devices / frame["tokens_per_s"]).drop_nulls()
        assert ((ratio - 1).abs() < 0.02).all(), name
        assert frame["trial_id"].is_unique().all()


def test_the_vocabulary_of_aleph_alpha_is_the_one_its_figures_imply(read) -> None:  # type: ignore[no-untyped-def]
    assert read(source_id="aleph_alpha_layouts")["model.vocabulary"] == 128_000
    assert read(source_id="aleph_alpha_layouts", vocab_size=50_000)["model.vocabulary"] == 50_000
    assert read(source_id="another")["model.vocabulary"] is None
