"""How fast the model is, in one run: a million configurations, a fit on 100,000 trials, a suggestion.

    python benchmarks/model_speed.py [--json]

The configurations are those of a made-up GPU cluster, of many models, layouts and batches; their
throughput is the physics' with a known deviation and noise. Each task has a process of its own, whose peak
memory is the kernel's figure, imports and the task's own frames included.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import pretune
from pretune.model import TransferSurrogate, TransformerPhysics
from pretune.tuner.strategies.transfer import most_promising

RESULTS = Path(__file__).resolve().parent / "results" / "model_speed.json"
PLATFORMS = ("a", "b", "c", "d")  # those a fit learns from; sources of the suggestion are the last three
LEVELS: dict[str, list[Any]] = {
    "model.layers": [12, 24, 32, 48, 80],
    "model.hidden_size": [1024, 2048, 4096, 8192],
    "workload.sequence_length": [1024, 2048, 4096, 8192],
    "workload.precision": ["bf16", "fp8"],
    "knob.micro_batch": [1, 2, 4, 8],
    "knob.accumulation": [1, 2, 4, 8, 16],
    "knob.tp": [1, 2, 4, 8],
    "knob.pp": [1, 2, 4, 8],
    "knob.zero_stage": [0, 1, 2, 3],
    "knob.reduce_bucket_size": [50_000_000, 500_000_000],
    "knob.activation_checkpointing": ["none", "selective", "full"],
    "knob.overlap_comm": [False, True],
}
CONSTANT = {
    "model.vocabulary": 50_304,
    "model.gated_mlp": True,
    "platform.devices_per_node": 8,
    "platform.nodes": 8,
    "platform.backend": "nccl",
    "accelerator.memory_bytes": 80_000_000_000,
    "accelerator.memory_bandwidth_bytes_per_s": 2e12,
    "peak_flops_per_s.bf16": 3.12e14,
    "intra_node.bandwidth_bytes_per_s": 3e11,
    "inter_node.bandwidth_bytes_per_s": 2.5e10,
    "framework": "deepspeed",
}


def configurations(count: int, platform: str = "a", seed: int = 0) -> pl.DataFrame:
    """``count`` random rows of the space in the store's columns; those of one seed are always the same."""
    rng = np.random.default_rng(seed)
    columns = {
        name: pl.Series(values).gather(rng.integers(len(values), size=count))
        for name, values in LEVELS.items()
    }
    constant = [pl.lit(value).alias(name) for name, value in {**CONSTANT, "platform.name": platform}.items()]
    dp = (64 // (pl.col("knob.tp") * pl.col("knob.pp"))).clip(1)
    batch = pl.col("knob.micro_batch") * pl.col("knob.accumulation") * dp * pl.col("workload.sequence_length")
    return (
        pl.DataFrame(columns)
        .with_columns(*constant, (pl.col("model.hidden_size") // 128).alias("model.heads"))
        .with_columns(dp.alias("knob.dp"), batch.alias("workload.global_batch_tokens"))
    )


def trials(count: int, platform: str = "a", seed: int = 1) -> pl.DataFrame:
    """Configurations that were run: slower than physics by what a few knobs decide, with 3 % noise."""
    frame = configurations(count, platform, seed)
    physics = TransformerPhysics()
    rng = np.random.default_rng(seed)
    slow = 0.1 * (frame["knob.zero_stage"].to_numpy() == 3) + 0.2 / frame["knob.micro_batch"].to_numpy()
    speed = np.exp(physics.log_throughput(frame) - slow + 0.03 * rng.standard_normal(count))
    fits = physics.memory_bytes(frame) * np.exp(0.1 * rng.standard_normal(count)) < 80e9
    return frame.with_columns(
        pl.Series("trial_id", [f"{platform}-{i}" for i in range(count)]),
        pl.Series("status", np.where(fits, "ok", "oom")),
        pl.Series("tokens_per_s_per_device", np.where(fits, speed, np.nan)).fill_nan(None),
    )


def seconds(work: Callable[[], object]) -> float:
    """On the wall."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def predict(rows: int) -> float:
    """Features, physics, intervals and chances of ``rows`` configurations of a known platform."""
    model = pretune.Surrogate().fit(trials(2000))
    space = configurations(rows, seed=2)
    model.predict(space.head(1000))
    return seconds(lambda: model.predict(space))


def fit(rows: int) -> float:
    """A surrogate on the trials of four platforms."""
    each = [trials(rows // len(PLATFORMS), name, seed) for seed, name in enumerate(PLATFORMS)]
    history = pl.concat(each)
    return seconds(lambda: pretune.Surrogate().fit(history))


def suggest(candidates: int) -> float:
    """The next trial after 10 of the target's own, the sources learned before: fit, predict, choose."""
    sources = pl.concat([trials(500, name, seed) for seed, name in enumerate(PLATFORMS[1:], 3)])
    space, own = configurations(candidates, "a", 9), trials(12, "a", 9)
    surrogate = TransferSurrogate("a")
    surrogate.fit(pl.concat([sources, own.head(10)])).predict(space)

    def suggestion() -> int:
        believed = surrogate.fit(pl.concat([sources, own.head(11)])).predict(space)
        best = np.log(float(own["tokens_per_s_per_device"].max() or 1.0))  # type: ignore[arg-type]
        return most_promising(believed, np.ones(candidates, dtype=bool), best)

    return seconds(suggestion)


def measured(task: Callable[[int], float], size: int) -> dict[str, float]:
    """The task's seconds, and the most memory that this process ever held, in GiB."""
    took = task(size)
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, KiB elsewhere
    return {"seconds": took, "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "architecture": platform.machine(), "python": platform.python_version()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    options.add_argument("--json", action="store_true")
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--fitted", type=int, default=100_000)
    options.add_argument("--candidates", type=int, default=10_000)
    args = options.parse_args()
    tasks = {
        f"predict {args.rows:,} configurations": (predict, args.rows),
        f"fit on {args.fitted:,} trials": (fit, args.fitted),
        f"suggest among {args.candidates:,} candidates": (suggest, args.candidates),
    }
    found = {}
    for name, task in tasks.items():
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            found[name] = alone.apply(measured, task)
    kept = json.dumps({"machine": machine(), "tasks": found}, indent=1)
    RESULTS.write_text(kept + "\n")
    if args.json:
        print(kept)
        return
    for name, figures in found.items():
        print(f"{name:<40} {figures['seconds']:7.2f} s   {figures['peak_gib']:.2f} GiB at most")


if __name__ == "__main__":
    main()
