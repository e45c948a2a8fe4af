"""Published measurements, in the one CSV header of the shared data, as frames in the store's columns.

Only what a source states is filled in; what it leaves empty stays null. Vendors' figures of the
accelerators come from their data sheets (dense peaks, without sparsity).
"""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

# bf16 and fp8 dense FLOP/s; memory bytes and bytes/s; links in and between nodes, bytes/s one way
ACCELERATORS = {
    "V100": (125e12, None, 16e9, 0.9e12, 150e9, 3.1e9),  # NVIDIA V100 data sheet (fp16 tensor)
    "A100": (312e12, None, 80e9, 2.039e12, 300e9, 25e9),  # NVIDIA A100 80GB data sheet; 8x HDR InfiniBand
    "H100": (989.4e12, 1978.9e12, 80e9, 3.35e12, 450e9, 50e9),  # NVIDIA H100 SXM data sheet; 8x NDR
    "H200": (989.4e12, 1978.9e12, 141e9, 4.8e12, 450e9, 50e9),  # NVIDIA H200 data sheet
    "B200": (2.25e15, 4.5e15, 180e9, 7.7e12, 900e9, 50e9),  # NVIDIA DGX B200 data sheet
    "GB200": (2.5e15, 5.0e15, 186e9, 8e12, 900e9, 50e9),  # NVIDIA GB200 NVL72 data sheet
    "B300": (2.25e15, 4.5e15, 270e9, 7.7e12, 900e9, 100e9),  # NVIDIA DGX B300 data sheet
    "GB300": (2.5e15, 5.0e15, 279e9, 8e12, 900e9, 100e9),  # NVIDIA GB300 NVL72 data sheet
}
GATED = ("llama", "qwen", "mixtral", "mistral", "deepseek")
UNTIED = ("llama", "qwen", "mixtral", "mistral", "deepseek")
STATUS = {"ok": "ok", "oom": "oom", "failed": "crash"}


def shared_folder() -> Path:
    """``PRETUNE_SHARED``, or ``../shared`` beside the project."""
    shared = os.environ.get("PRETUNE_SHARED")
    return Path(shared) if shared else Path(__file__).resolve().parents[2] / "shared"


def data_folder() -> Path:
    return shared_folder() / "data" / "llm_pretraining"


def read(name: str) -> pl.DataFrame:
    """One source, e.g. ``nanotron_ultrascale``, in the store's columns."""
    runs = pl.read_csv(data_folder() / f"{name}.csv", infer_schema_length=None)
    kind = pl.col("accelerator").str.extract(r"^([A-Z]+\d+)")
    nodes = (pl.col("accelerators_total") / pl.col("accelerators_per_node")).ceil().cast(pl.Int64)
    vendor = {
        "peak_flops_per_s.bf16": 0,
        "peak_flops_per_s.fp8": 1,
        "accelerator.memory_bytes": 2,
        "accelerator.memory_bandwidth_bytes_per_s": 3,
        "intra_node.bandwidth_bytes_per_s": 4,
        "inter_node.bandwidth_bytes_per_s": 5,
    }
    figures = {
        column: kind.replace_strict(
            {name: row[i] for name, row in ACCELERATORS.items()}, default=None, return_dtype=pl.Float64
        )
        for column, i in vendor.items()
    }
    return runs.select(
        **{
            "trial_id": "row_id",
            "source": "source_id",
            "framework": "framework",
            "status": pl.col("status").replace_strict(STATUS),
            "tokens_per_s_per_device": pl.col("tokens_per_s_per_accelerator").cast(pl.Float64),
            "peak_memory_device_bytes": pl.col("peak_memory_gb").cast(pl.Float64) * 1e9,
            "platform.name": pl.format("{}x{}x{}", kind, "accelerators_per_node", nodes),
            "platform.devices_per_node": pl.min_horizontal("accelerators_per_node", "accelerators_total"),
            "platform.nodes": nodes,
            "platform.backend": pl.lit("nccl"),
            "accelerator.name": "accelerator",
            **figures,
            **_model(),
            **_knobs(),
        }
    )


def _model() -> dict[str, pl.Expr | str]:
    name = pl.col("model_name").str.to_lowercase()
    kv_heads = pl.col("n_kv_heads").cast(pl.Int64, strict=False)
    ffn = pl.col("ffn_hidden_size").cast(pl.Int64, strict=False)
    precision = pl.col("precision").cast(pl.String)
    return {
        "model.name": "model_name",
        "model.layers": "n_layers",
        "model.hidden_size": "hidden_size",
        "model.heads": "n_heads",
        "model.kv_heads": pl.coalesce(kv_heads, "n_heads"),
        "model.ffn_size": ffn,
        "model.vocabulary": pl.col("vocab_size").cast(pl.Int64, strict=False),
        "model.gated_mlp": name.str.starts_with("llama") | name.str.contains("|".join(GATED)),
        "model.tied_embeddings": ~name.str.contains("|".join(UNTIED)),
        "model.experts": pl.col("n_experts").cast(pl.Int64, strict=False),
        "model.experts_per_token": pl.col("experts_topk").cast(pl.Int64, strict=False),
        "workload.sequence_length": "seq_len",
        "workload.global_batch_tokens": pl.col("global_batch_sequences") * pl.col("seq_len"),
        "workload.precision": pl.when(precision.str.contains("fp8|fp4"))
        .then(pl.lit("fp8"))
        .otherwise(precision),
    }


def _knobs() -> dict[str, pl.Expr]:
    def whole(name: str) -> pl.Expr:
        return pl.col(name).cast(pl.Int64, strict=False)

    return {
        "knob.micro_batch": whole("micro_batch_sequences"),
        "knob.accumulation": whole("grad_accum"),
        **{f"knob.{name}": whole(name) for name in ("dp", "tp", "pp", "vp", "cp", "ep", "zero_stage")},
        "knob.sequence_parallel": pl.col("sequence_parallel").cast(pl.String) == "true",
        "knob.activation_checkpointing": pl.col("activation_checkpointing").cast(pl.String),
        "knob.attention": pl.col("attention_impl").cast(pl.String),
    }
