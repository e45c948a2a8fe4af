"""How fast the model is, in one run: a million configurations, a fit on 100,000 trials, a suggestion.

    python benchmarks/model_speed.py [--json]

The configurations are those of a made-up GPU cluster, of many models, layouts and batches; their
throughput is the physics' with a known deviation and noise. Peak memory is the process's own, by the kernel.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import polars as pl

from pretune.model import BoostedTrees, TransferSurrogate, TransformerPhysics
from pretune.tuner.strategies.transfer import most_promising

Found = TypeVar("Found")
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


def timed(work: Callable[[], Found]) -> tuple[Found, dict[str, float]]:
    """What ``work`` gives; its wall seconds, and by how many GiB the process's peak memory grew."""
    before, began = _peak_gib(), time.perf_counter()
    found = work()
    return found, {"seconds": time.perf_counter() - began, "peak_growth_gib": _peak_gib() - before}


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(rows: int, fitted: int, candidates: int) -> dict[str, dict[str, float]]:
    """Each task with its seconds and GiB."""
    model = BoostedTrees(n_jobs=-1).fit(trials(2000))
    space = configurations(rows, seed=2)
    model.predict(space.head(1000))
    _, prediction = timed(lambda: model.predict(space))
    history = trials(fitted)
    _, fit = timed(lambda: BoostedTrees(n_jobs=-1).fit(history))
    return {
        f"predict {rows:,} configurations": prediction,
        f"fit on {fitted:,} trials": fit,
        f"suggest among {candidates:,} candidates": _suggestion(candidates),
    }


def _suggestion(candidates: int) -> dict[str, float]:
    """The next trial after 10 of the target's own, the sources learned before: fit, predict, choose."""
    sources = pl.concat([trials(500, name, seed) for seed, name in enumerate(("b", "c", "d"), 3)])
    space, own = configurations(candidates, "a", 9), trials(12, "a", 9)
    surrogate = TransferSurrogate("a")
    surrogate.fit(pl.concat([sources, own.head(10)])).predict(space)

    def suggest() -> int:
        believed = surrogate.fit(pl.concat([sources, own.head(11)])).predict(space)
        best = np.log(float(own["tokens_per_s_per_device"].max() or 1.0))  # type: ignore[arg-type]
        return most_promising(believed, np.ones(candidates, dtype=bool), best)

    return timed(suggest)[1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    options.add_argument("--json", action="store_true")
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--fitted", type=int, default=100_000)
    options.add_argument("--candidates", type=int, default=10_000)
    args = options.parse_args()
    found = measure(args.rows, args.fitted, args.candidates)
    if args.json:
        print(json.dumps(found))
        return
    for task, figures in found.items():
        print(f"{task:<40} {figures['seconds']:7.2f} s   +{figures['peak_growth_gib']:.2f} GiB")


if __name__ == "__main__":
    main()
