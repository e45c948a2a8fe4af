"""Published measurements, in the one CSV header of the shared data, as frames in the store's columns.

Only what a source states is filled in, and what follows from it; what it leaves empty stays null.
Figures of the accelerators are their vendors' (accelerators.py), shapes of named public models their
authors'.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
from accelerators import FIGURES, GIB, figure, short_name

STATUS = {"ok": "ok", "oom": "oom", "failed": "crash"}
HOST = r"A64FX"
OTHER_BACKENDS = r"^TPU|^Ascend|^Trainium|^Gaudi"
GATED = r"llama|qwen|mixtral|mistral|deepseek|kimi|gemma|gpt-oss|internlm|baichuan|aquila|glm|yi-|minicpm"
PLAIN = r"^gpt[-_/0-9]|gpt3|^mpt|bloom|turing|^megatron-|^nemotron-(8|22|340)b"
TIED = r"^gpt[-_/0-9]|gpt3|^mpt|bloom|turing|^megatron-|gemma"  # Megatron's GPT ties, unless told
# per-expert feed-forward size of the authors' configurations: the shared data has that of dense layers
EXPERT_FFN = {
    r"deepseek-?v?3": 2048,
    r"kimi-k2": 2048,
    r"qwen3-235b": 1536,
    r"qwen3-(moe-)?30b": 768,
    r"qwen2-57b": 2560,
}
# kind and unit of a source's peak memory; what nvidia-smi or its like shows is the device's
ALLOCATED = {"megatron_ci_tests": 1e9, "fms_acceleration": 1e9, "nanotron_ultrascale": GIB}
RESERVED = {"torchtitan": GIB}
IN_GB = ("nvidia_docs_misc", "internevo")  # without a word of which; all others say GiB
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
EIGHT_BIT_OR_LESS = r"fp8|fp4"
# knobs of a source's comm_knobs that the store has a name for; the others keep theirs
COMM_KNOBS = {
    "overlap-grad-reduce": "overlap_comm",
    "overlap_moe_expert_parallel_comm": "overlap_expert_comm",
}
NO_KNOBS = ("optimizer", "swiglu", "moe-ffn-hidden-size", "fsdp_mixed_precision", "extra", "kv-channels")


def shared_folder() -> Path:
    """``PRETUNE_SHARED``, or ``../shared`` beside the project."""
    shared = os.environ.get("PRETUNE_SHARED")
    return Path(shared) if shared else Path(__file__).resolve().parents[2] / "shared"


def data_folder() -> Path:
    return shared_folder() / "data" / "llm_pretraining"


def sources() -> list[str]:
    """Names of all published sources."""
    return sorted(path.stem for path in data_folder().glob("*.csv"))


def read(name: str) -> pl.DataFrame:
    """One source, e.g. ``nanotron_ultrascale``, in the store's columns."""
    runs = pl.read_csv(data_folder() / f"{name}.csv", infer_schema_length=0)
    runs = runs.with_columns(_local(runs)).with_columns(_nodes().alias("nodes"))
    return runs.select(**_trial(), **_platform(), **_model(), **_knobs(), **_comm_knobs(runs))


def whole(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64)


def real(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64)


def truth(name: str) -> pl.Expr:
    """true and false; null stays null."""
    return pl.col(name).replace_strict({"true": True, "false": False}, default=None, return_dtype=pl.Boolean)


def lower(name: str) -> pl.Expr:
    return pl.col(name).str.to_lowercase()


def _trial() -> dict[str, pl.Expr]:
    ok = pl.col("status") == "ok"
    peak = real("peak_memory_gb")
    source = pl.col("source_id")
    allocated = peak * source.replace_strict(ALLOCATED, default=None, return_dtype=pl.Float64)
    reserved = peak * source.replace_strict(RESERVED, default=None, return_dtype=pl.Float64)
    device = peak * pl.when(source.is_in(IN_GB)).then(1e9).otherwise(GIB)
    device = pl.when(source.is_in([*ALLOCATED, *RESERVED])).then(None).otherwise(device)
    return {
        "trial_id": pl.col("row_id"),
        "source": source,
        "framework": pl.col("framework"),
        "software.framework": pl.col("framework_version"),
        "status": pl.col("status").replace_strict(STATUS),
        "step_time_s": pl.when(ok).then(real("step_time_s")),
        "tokens_per_s": pl.when(ok).then(real("tokens_per_s_total")),
        "tokens_per_s_per_device": pl.when(ok).then(real("tokens_per_s_per_accelerator")),
        "peak_memory_allocated_bytes": allocated,
        "peak_memory_reserved_bytes": reserved,
        "peak_memory_device_bytes": device,
    }


def _local(runs: pl.DataFrame) -> pl.Series:
    """Devices that the fast link joins: a host's, or of a larger domain as many as share it evenly."""
    stated = runs.select(whole("accelerators_per_node"), whole("accelerators_total"), figure("domain"))
    found = [
        max(count for count in range(1, int(domain) + 1) if total % count == 0)
        if domain
        else host and min(host, total)
        for host, total, domain in stated.iter_rows()
    ]
    return pl.Series("local", found, dtype=pl.Int64)


def _nodes() -> pl.Expr:
    return (whole("accelerators_total") / pl.col("local")).ceil().cast(pl.Int64)


def _platform() -> dict[str, pl.Expr]:
    other = pl.col("accelerator").str.contains(OTHER_BACKENDS)
    host = pl.col("accelerator").str.contains(HOST)
    return {
        "platform.name": pl.format("{}x{}x{}", short_name(), "local", "nodes"),
        "platform.devices_per_node": pl.col("local"),
        "platform.nodes": pl.col("nodes"),
        "platform.backend": pl.when(host).then(pl.lit("mpi")).when(~other).then(pl.lit("nccl")),
        "accelerator.name": pl.col("accelerator"),
        **{column: figure(field) for column, field in FIGURES.items()},
    }


def _model() -> dict[str, pl.Expr]:
    name, precision = lower("model_name"), pl.col("precision")
    hidden = whole("hidden_size")
    gated = pl.when(name.str.contains(GATED)).then(True).when(name.str.contains(PLAIN)).then(False)
    swiglu = pl.col("comm_knobs").str.json_path_match("$.swiglu") == "true"
    # LLaMA's MLP is 2/3 of 4 x hidden, in whole 256s (Touvron et al. 2023, arXiv:2302.13971, section 2.2)
    first_llama = pl.when(name.str.contains(r"^llama-\d+b$")).then(-(-(hidden * 8 // 3) // 256) * 256)
    expert = pl.col("comm_knobs").str.json_path_match("$['moe-ffn-hidden-size']").cast(pl.Int64)
    for pattern, size in EXPERT_FFN.items():
        expert = pl.when(name.str.contains(pattern)).then(size).otherwise(expert)
    # what the MFU and the step times that Aleph Alpha published imply, as the shared data's notes say
    vocabulary = pl.when(pl.col("source_id") == "aleph_alpha_layouts").then(128_000)
    many = whole("n_experts").is_not_null()
    return {
        "model.name": pl.col("model_name"),
        "model.layers": whole("n_layers"),
        "model.hidden_size": hidden,
        "model.heads": whole("n_heads"),
        "model.kv_heads": pl.coalesce(whole("n_kv_heads"), whole("n_heads")),
        "model.ffn_size": pl.coalesce(pl.when(many).then(expert), whole("ffn_hidden_size"), first_llama),
        "model.vocabulary": pl.coalesce(whole("vocab_size"), vocabulary),
        "model.gated_mlp": pl.when(swiglu).then(True).otherwise(gated),
        "model.tied_embeddings": pl.when(gated.is_not_null()).then(
            name.str.contains(TIED) & ~name.str.contains("gpt-oss")
        ),
        "model.experts": whole("n_experts"),
        "model.experts_per_token": whole("experts_topk"),
        "workload.sequence_length": whole("seq_len"),
        "workload.global_batch_tokens": whole("global_batch_sequences") * whole("seq_len"),
        "workload.precision": pl.when(precision.str.contains(EIGHT_BIT_OR_LESS))
        .then(pl.lit("fp8"))
        .when(precision.is_in(PRECISIONS))
        .then(precision),
    }


def _knobs() -> dict[str, pl.Expr]:
    words, sharding = lower("attention_impl"), pl.col("sharding")
    aleph, ci = (pl.col("source_id") == name for name in ("aleph_alpha_layouts", "megatron_ci_tests"))
    attention = (
        pl.when(aleph & (words == "fused"))  # Megatron's fused softmax keeps the scores
        .then(pl.lit("fused_softmax"))
        .when(ci & (words == "unfused"))
        .then(pl.lit("eager"))
        .otherwise(words.str.replace(r" \+ rms kernel$", ""))
    )
    sharded = pl.when(sharding.str.contains("FSDP")).then(3)
    tuned = pl.concat_str("model_name", "notes", ignore_nulls=True)
    return {
        "knob.micro_batch": whole("micro_batch_sequences"),
        "knob.accumulation": whole("grad_accum"),
        **{f"knob.{name}": whole(name) for name in ("dp", "tp", "pp", "vp", "cp", "ep")},
        "knob.zero_stage": pl.coalesce(whole("zero_stage"), sharded),
        "knob.sharding": pl.when(pl.col("zero_stage").is_null()).then(sharding),
        "knob.offload_optimizer": pl.when(pl.col("offload") == "none")
        .then(pl.lit("none"))
        .when(pl.col("offload").str.contains("optimizer"))
        .then(pl.lit("cpu")),
        "knob.sequence_parallel": truth("sequence_parallel"),
        "knob.activation_checkpointing": pl.col("activation_checkpointing"),
        "knob.attention": attention,
        "knob.rmsnorm_kernel": pl.when(aleph).then(words.str.contains("rms kernel")),
        "knob.compile": truth("compile"),
        "knob.low_precision": pl.when(pl.col("precision").str.contains(EIGHT_BIT_OR_LESS)).then("precision"),
        # reduced in fp32 by Composer's DEFAULT, in the training precision by PURE
        "knob.communication_data_type": pl.col("comm_knobs")
        .str.json_path_match("$.fsdp_mixed_precision")
        .replace_strict({"DEFAULT": "fp32", "PURE": "bf16"}, default=None, return_dtype=pl.String),
        "knob.tuning": pl.when(tuned.str.contains("LoRA"))
        .then(pl.lit("lora"))
        .when(tuned.str.contains("SFT|FINE-TUNING"))
        .then(pl.lit("sft")),
    }


def _comm_knobs(runs: pl.DataFrame) -> dict[str, pl.Series]:
    """The further settings that a source has, one column each; numbers and truths as such."""
    settings = [json.loads(text) if text else {} for text in runs["comm_knobs"]]
    names = sorted({name for one in settings for name in one if name not in NO_KNOBS})
    columns = {}
    for name in names:
        values = [one.get(name) for one in settings]
        kinds = {type(value) for value in values if value is not None}
        if not kinds <= {bool} and not kinds <= {int, float}:
            values = [None if value is None else str(value) for value in values]
        short = COMM_KNOBS.get(name, name.replace("-", "_").replace("env:", "env."))
        columns[f"knob.{short}"] = pl.Series(values)
    return columns
