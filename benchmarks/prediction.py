"""How well throughput is predicted on published measurements: ours, physics alone, raw XGBoost.

    python benchmarks/prediction.py [--json] [--seeds 5] [--rows FOLDER]

Tasks: mosaic, 5 folds grouped by (model, devices); mosaic, one accelerator from the other with 0,
1 and 3 trials of it; nanotron, one model size left out, with 0 and 5 trials of it. Trials are drawn
at random ``--seeds`` times and are not scored. Reads ``PRETUNE_SHARED`` (default: ../shared
beside the project). ``--rows`` keeps each task's per-row predictions as Parquet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import published

from pretune.model import BoostedTrees, NoPhysics, Surrogate, TransferSurrogate, cross_validate
from pretune.model.evaluation import predictions, scores

TARGET = "target"
SHOWN = ("median_absolute_relative_error", "rank_correlation", "coverage", "median_interval_ratio")
Task = tuple[str, str, pl.DataFrame]  # task, method, per-row predictions


class PhysicsAlone(BoostedTrees):
    """The baseline and one factor: a surrogate whose trees have no rounds."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(n_estimators=0, seed=seed)


def raw(seed: int) -> BoostedTrees:
    """Boosted trees on log throughput, without physics."""
    return BoostedTrees(NoPhysics(), seed=seed)


def mosaic_folds(seeds: int) -> Iterator[Task]:
    table = published.read("mosaic_llm_foundry")
    groups = [f"{m} {n}" for m, n in zip(table["model.name"], table["platform.nodes"], strict=True)]
    makers: dict[str, Callable[[int], Surrogate]] = {
        "pretune": lambda seed: BoostedTrees(seed=seed),
        "physics alone": lambda seed: PhysicsAlone(seed),
        "raw xgboost": raw,
    }
    for method, make in makers.items():
        for seed in range(seeds):
            _, rows = cross_validate(lambda make=make, seed=seed: make(seed), table, groups, seed=seed)
            yield "mosaic 5-fold", method, rows


def carried(task: str, sources: pl.DataFrame, target: pl.DataFrame, trials: int, seed: int) -> Iterator[Task]:
    """One target with ``trials`` of its rows known; the others are predicted."""
    order = np.random.default_rng(seed).permutation(len(target))
    target = target.with_columns(pl.lit(TARGET).alias("platform.name"))
    own, rest = target[order[:trials]], target[order[trials:]]
    known = pl.concat([sources, own], how="diagonal")
    fitted: dict[str, Surrogate] = {
        "pretune": TransferSurrogate(TARGET, seed=seed).fit(known),
        "physics alone": PhysicsAlone(seed).fit(own if trials else sources),
        "raw xgboost": raw(seed).fit(known),
    }
    for method, surrogate in fitted.items():
        yield task, method, predictions(surrogate, rest)


def mosaic_accelerators(seeds: int) -> Iterator[Task]:
    table = published.read("mosaic_llm_foundry")
    for name in ("A100", "H100"):
        own = table["platform.name"].str.starts_with(name)
        for trials in (0, 1, 3):
            for seed in range(seeds if trials else 1):
                task = f"mosaic to {name}, {trials} trials"
                yield from carried(task, table.filter(~own), table.filter(own), trials, seed)


def nanotron_sizes(seeds: int) -> Iterator[Task]:
    table = published.read("nanotron_ultrascale").filter(pl.col("status") == "ok")
    for size in table["model.name"].unique().sort():
        own = table["model.name"] == size
        for trials in (0, 5):
            for seed in range(min(seeds, 3) if trials else 1):
                task = f"nanotron without {size}, {trials} trials"
                yield from carried(task, table.filter(~own), table.filter(own), trials, seed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=Path, help="keep the per-row predictions here")
    arguments = parser.parse_args()
    if not published.data_folder().is_dir():
        parser.error(f"{published.data_folder()}: is missing; set PRETUNE_SHARED")
    tasks: dict[tuple[str, str], list[pl.DataFrame]] = {}
    for run in (mosaic_folds, mosaic_accelerators, nanotron_sizes):
        for task, method, rows in run(arguments.seeds):
            tasks.setdefault((task, method), []).append(rows)
            print(f"{task}: {method}", file=sys.stderr)
    found = [{"task": task, "method": method, **averaged(parts)} for (task, method), parts in tasks.items()]
    if arguments.rows:
        keep(tasks, arguments.rows)
    print(json.dumps(found, indent=1) if arguments.json else table_of(found))
    return 0


def averaged(parts: list[pl.DataFrame]) -> dict[str, float]:
    """Mean over the draws of each score."""
    each = [scores(rows) for rows in parts]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def keep(tasks: dict[tuple[str, str], list[pl.DataFrame]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        rows.select(
            pl.lit(task).alias("task"), pl.lit(method).alias("method"), pl.lit(draw).alias("draw"), pl.all()
        )
        for (task, method), draws in tasks.items()
        for draw, rows in enumerate(draws)
    ]
    pl.concat(parts, how="diagonal").write_parquet(folder / "prediction.parquet")


def table_of(found: list[dict[str, Any]]) -> str:
    lines = [f"{'task':42} {'method':14} {'error':>7} {'rank':>6} {'cover':>6} {'high/low':>9}"]
    for row in found:
        error, rank, cover, ratio = (row[name] for name in SHOWN)
        lines.append(
            f"{row['task']:42} {row['method']:14} {error:7.1%} {rank:6.2f} {cover:6.0%} {ratio:9.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
