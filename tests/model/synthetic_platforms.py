"""Platforms whose truth is known: two-rank CPU clusters by a formula that is not the package's own.

Other constants, other exponents, and quirks that no baseline knows of (threads that help by a
fifth, an optimizer that slows ZeRO-3, thin micro batches), so that there is something to learn.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import polars as pl

LAYERS, HIDDEN, VOCABULARY, SEQUENCE, BATCH = 4, 256, 2048, 128, 16
WEIGHTS = 12 * LAYERS * HIDDEN**2 + VOCABULARY * HIDDEN
# name: (FLOP/s, link bytes/s, latency s, memory bytes, nodes)
PLATFORMS = {
    "loopback": (9e10, 9e8, 2e-4, 8e9, 1),
    "gigabit": (9e10, 1.1e8, 3e-4, 8e9, 2),
    "slow": (9e10, 2.3e7, 4e-4, 8e9, 2),
    "half": (4.5e10, 7e8, 5e-4, 8e9, 1),
    "capped": (9e10, 9e8, 2e-4, 1.1e8, 1),
}
SPACE: dict[str, list[Any]] = {
    "micro_batch": [1, 2, 4, 8],
    "zero_stage": [0, 1, 2, 3],
    "reduce_bucket_size": [100_000, 500_000_000],
    "activation_checkpointing": ["none", "full"],
    "attention": ["sdpa", "eager"],
    "threads_per_rank": [1, 2],
}


def choices() -> list[dict[str, Any]]:
    """All 256 configurations."""
    return [dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())]


def candidates(platform: str, knobs: list[dict[str, Any]] | None = None) -> pl.DataFrame:
    """Configurations in the store's columns, without outcome."""
    flops, bandwidth, latency, memory, nodes = PLATFORMS[platform]
    link = "inter_node" if nodes > 1 else "intra_node"
    constant = {
        "model.name": "tiny",
        "model.layers": LAYERS,
        "model.hidden_size": HIDDEN,
        "model.heads": 4,
        "model.vocabulary": VOCABULARY,
        "workload.sequence_length": SEQUENCE,
        "workload.global_batch_tokens": BATCH * SEQUENCE,
        "workload.precision": "fp32",
        "platform.name": platform,
        "platform.devices_per_node": 2 // nodes,
        "platform.nodes": nodes,
        "platform.backend": "gloo",
        "accelerator.memory_bytes": int(memory),
        "accelerator.memory_bandwidth_bytes_per_s": 1e10,
        "fingerprint.matmul_fp32_flops_per_s": flops,
        f"{link}.bandwidth_bytes_per_s": bandwidth,
        f"{link}.latency_s": latency,
        "framework": "deepspeed",
    }
    chosen = choices() if knobs is None else knobs
    return pl.DataFrame([{**constant, **{f"knob.{k}": v for k, v in each.items()}} for each in chosen])


def truth(platform: str, knobs: dict[str, Any]) -> float | None:
    """Tokens per second per device; None where it runs out of memory."""
    flops, bandwidth, latency, memory, _ = PLATFORMS[platform]
    micro, zero, full = knobs["micro_batch"], knobs["zero_stage"], knobs["activation_checkpointing"] == "full"
    eager = knobs["attention"] == "eager"
    steps = BATCH // (2 * micro)
    kept = micro * SEQUENCE * HIDDEN * LAYERS * (8 if full else 80) + (2e7 if eager else 0)
    if WEIGHTS * (18 - 4 * (zero > 0) - 2 * (zero > 1) - 4 * (zero > 2)) + kept + micro * 4e6 > memory:
        return None
    work = 6 * WEIGHTS * SEQUENCE * BATCH / 2 * (1.37 if full else 1.0) * (1.12 if eager else 1.0)
    compute = work / (0.62 * flops) * (1 + 0.7 / micro) / (1.2 if knobs["threads_per_rank"] == 2 else 1.0)
    volumes = {0: 1.0, 1: 1.5, 2: 1.0 * steps + 0.5, 3: 1.0 * steps}[zero]
    messages = max(1, min(40, WEIGHTS / knobs["reduce_bucket_size"])) * (steps if zero >= 2 else 1)
    link = volumes * WEIGHTS * 4 / (0.8 * bandwidth) + 2.2 * latency * (messages + (60 if zero == 3 else 0))
    optimizer = WEIGHTS * 90 / 1e10 * (0.6 if zero else 1.0) * (2.5 if zero == 3 else 1.0)
    return SEQUENCE * BATCH / 2 / (compute + link + optimizer)


def trials(platform: str, count: int | None = None, seed: int = 0, noise: float = 0.02) -> pl.DataFrame:
    """``count`` random configurations that were run (None: all), failures included."""
    rng = np.random.default_rng([seed, *platform.encode()])
    knobs = choices()
    picked = rng.permutation(len(knobs))[:count]
    chosen = [knobs[i] for i in picked]
    values = [truth(platform, each) for each in chosen]
    measured = [None if v is None else v * float(np.exp(noise * rng.standard_normal())) for v in values]
    return candidates(platform, chosen).with_columns(
        pl.Series("trial_id", [f"{platform}-{i}" for i in picked]),
        pl.Series("status", ["oom" if v is None else "ok" for v in values]),
        pl.Series("tokens_per_s_per_device", measured, dtype=pl.Float64),
    )


def history(without: str, count: int = 60, seed: int = 0) -> pl.DataFrame:
    """Trials of every other platform."""
    return pl.concat([trials(name, count, seed) for name in PLATFORMS if name != without], how="diagonal")
