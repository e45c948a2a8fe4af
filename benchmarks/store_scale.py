"""The store with a million trials: append, ask for one platform and model, read all, merge, open again.

    python benchmarks/store_scale.py [--trials 1000000] [--json]

The trials are made up: those of the history that ships, under new ids, on 20 clusters, with throughputs
that differ; none was measured. They are appended in batches of 10,000, one cluster each. Beside a task
stands the same one done with polars alone, on Parquet files of the same frames in the same run, in turn.
Every task runs in a process of its own; peak memory is that process's, by the kernel, its imports included.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

from pretune.datasets import Trial, TrialStore, shipped_history
from pretune.datasets.schema import to_table
from pretune.datasets.upkeep import compact

RESULT = Path(__file__).parent / "results" / "store_scale.json"
BATCH, CLUSTERS, REPEATS = 10_000, 20, 3
Figures = dict[str, float]


def batches(trials: int) -> Iterator[list[Trial]]:
    """Made-up trials: batch n is on cluster n modulo :data:`CLUSTERS`."""
    rng = np.random.default_rng(0)
    recorded = list(shipped_history().trials())
    for number in range(-(-trials // BATCH)):
        name = f"cluster-{number % CLUSTERS}"
        at = rng.integers(len(recorded), size=min(BATCH, trials - number * BATCH))
        factors = rng.lognormal(0.0, 0.1, size=len(at))
        yield [
            _made_up(recorded[row], f"made-up-{number:04}-{i:05}", name, float(factor))
            for i, (row, factor) in enumerate(zip(at, factors, strict=True))
        ]


def _made_up(trial: Trial, trial_id: str, platform: str, factor: float) -> Trial:
    changes = {"trial_id": trial_id, "platform": trial.platform.model_copy(update={"name": platform})}
    for name in ("tokens_per_s", "tokens_per_s_per_device"):
        value = getattr(trial, name)
        changes[name] = value and value * factor
    return trial.model_copy(update=changes)


# -- the tasks: each returns its seconds, without what it prepares ------------------------------------
def append(root: Path, trials: int) -> float:
    """Each batch on disk (synced) before the next one begins."""
    store, seconds = TrialStore(root), 0.0
    for batch in batches(trials):
        began = time.perf_counter()
        store.append(batch)
        seconds += time.perf_counter() - began
    return seconds


def plain_append(root: Path, trials: int) -> float:
    """polars' write of frames that are there already: nothing is flattened or synced."""
    seconds = 0.0
    root.mkdir()
    for number, batch in enumerate(batches(trials)):
        frame = pl.DataFrame(to_table(batch))
        began = time.perf_counter()
        frame.write_parquet(root / f"{number:04}.parquet", compression="zstd")
        seconds += time.perf_counter() - began
    return seconds


def one_platform_and_model(trials: pl.LazyFrame) -> pl.LazyFrame:
    model = shipped_model()
    return trials.filter((pl.col("platform.name") == "cluster-0") & (pl.col("model.name") == model)).select(
        "trial_id", "status", "tokens_per_s_per_device", pl.col("^knob[.].*$")
    )


def shipped_model() -> str:
    return next(shipped_history().trials()).workload.model.name


def everything(trials: pl.LazyFrame) -> pl.LazyFrame:
    return trials


def ask(root: Path, question: Callable[[pl.LazyFrame], pl.LazyFrame]) -> float:
    began = time.perf_counter()
    found = TrialStore(root).query(question)
    return _some(found, began)


def plain_ask(root: Path, question: Callable[[pl.LazyFrame], pl.LazyFrame]) -> float:
    began = time.perf_counter()
    return _some(question(pl.scan_parquet(root / "*.parquet")).collect(), began)


def _some(found: pl.DataFrame, began: float) -> float:
    assert len(found)
    return time.perf_counter() - began


def merge(root: Path) -> float:
    began = time.perf_counter()
    compact(TrialStore(root), grace_s=0.0)
    return time.perf_counter() - began


def validate(root: Path) -> float:
    began = time.perf_counter()
    assert TrialStore(root).validate() == []
    return time.perf_counter() - began


# -- measuring ----------------------------------------------------------------------------------------
def _measured(task: Callable[..., float], *arguments: object) -> tuple[float, int]:
    return task(*arguments), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def alone(task: Callable[..., float], *arguments: object) -> tuple[float, int]:
    """Seconds and peak bytes of a task in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, task, *arguments).result()


def side_by_side(
    ours: tuple[Callable[..., float], Path],
    plain: tuple[Callable[..., float], Path],
    *more: object,
    repeats: int,
) -> Figures:
    """Medians of both, run in turn, and the ratio of the seconds."""
    pairs = [[alone(task, root, *more) for task, root in (ours, plain)] for _ in range(repeats)]
    seconds, peaks = ([statistics.median(pair[i][j] for pair in pairs) for i in (0, 1)] for j in (0, 1))
    return {
        "seconds": seconds[0],
        "plain_polars_seconds": seconds[1],
        "ratio": statistics.median(pair[0][0] / pair[1][0] for pair in pairs),
        "peak_bytes": peaks[0],
        "plain_polars_peak_bytes": peaks[1],
    }


def size_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.parquet"))


def measure(trials: int, folder: Path) -> dict[str, Figures]:
    ours, plain = folder / "store", folder / "plain"
    found = {"append": side_by_side((append, ours), (plain_append, plain), trials, repeats=1)}
    found["append"] |= {
        "trials_per_second": trials / found["append"]["seconds"],
        "bytes_per_trial": size_bytes(ours) / trials,
        "plain_polars_bytes_per_trial": size_bytes(plain) / trials,
    }
    for question in (one_platform_and_model, everything):
        found[question.__name__] = side_by_side((ask, ours), (plain_ask, plain), question, repeats=REPEATS)
    for task in (validate, merge):
        seconds, peak = alone(task, ours)
        found[task.__name__] = {"seconds": seconds, "peak_bytes": peak}
    found["merge"]["bytes_per_trial"] = size_bytes(ours) / trials
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    options.add_argument("--trials", type=int, default=1_000_000)
    options.add_argument("--json", action="store_true")
    options.add_argument("--keep", action="store_true", help=f"write the figures to results/{RESULT.name}")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks = measure(args.trials, Path(folder))
    found = {"trials": args.trials, "made_up": True, "cores": os.cpu_count(), "tasks": tasks}
    if args.keep:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    if args.json:
        print(json.dumps(found))
        return
    for task, figures in tasks.items():
        print(f"{task:<24}" + "  ".join(f"{name} {value:.4g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
