"""How well throughput is predicted on published measurements: ours, physics alone, raw XGBoost.

    python benchmarks/prediction.py [--json] [--seeds 20] [--quick] [--gate]

Runs every task of prediction_tasks.py with every method of prediction_methods.py, and ours once more
on shuffled history: beyond what the physics ranks, it must then rank by chance. Trials of the target
are drawn at random ``--seeds`` times and are not scored. Scores are means over draws, then over the
row's tasks; intervals are judged over all rows, pooled by accelerator, by the interval score of
Gneiting and Raftery 2007 (doi 10.1198/016214506000001437, equation 43) on log throughput. Reads
``PRETUNE_SHARED`` (default: ../shared beside the project). A full run is kept in
results/prediction.json, and per-row predictions of its first draws in results/prediction/.
``--quick`` takes few draws of few tasks; ``--gate`` compares them with results/gate.json and fails
where one is worse by more than its noise.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import prediction_gate as gate
import published
from prediction_methods import METHODS
from prediction_tasks import ROWS, Row
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata

from pretune.model import Prediction, TransformerPhysics
from pretune.model.base import INTERVAL

RESULTS = Path(__file__).resolve().parent / "results"
OURS, SHUFFLED, PEER = "pretune", "pretune, shuffled history", "raw xgboost"
KEPT_DRAWS = 3  # of which the rows are kept
SHUFFLED_DRAWS = 1
QUICK_SEEDS = 2
SHOWN = {
    "median_error": "median",
    "mean_error": "mean",
    "worst_error": "worst",
    "rank_correlation": "rank",
    "rank_beyond_physics": "beyond physics",
}

Scores = dict[str, float]
Drawn = dict[tuple[str, str, int], pl.DataFrame]  # task, method, draw -> predicted rows


def predicted(row: Row, draws: int, control: bool = True) -> Drawn:
    """Every method's predictions of one row of the results; ours on shuffled history, as a ``control``."""
    methods = {name: make() for name, make in METHODS.items()}
    methods |= {SHUFFLED: METHODS[OURS]()} if control else {}
    found: dict[tuple[str, str, int], list[pl.DataFrame]] = defaultdict(list)
    for split in row.splits(draws):
        for name, method in methods.items():
            if name == SHUFFLED and split.draw >= SHUFFLED_DRAWS:
                continue
            said = method(split.shuffled() if name == SHUFFLED else split)
            found[split.task, name, split.draw].append(beside(split.scored, said))
    return {key: pl.concat(parts) for key, parts in found.items()}


def beside(scored: pl.DataFrame, said: Prediction) -> pl.DataFrame:
    """Natural logs of what was measured, predicted, and said by the physics before any trial."""
    with np.errstate(divide="ignore"):
        low, high = np.log(said.low), np.log(said.high)
    return pl.DataFrame(
        {
            "trial_id": scored["trial_id"],
            "platform": scored["accelerator.name"].str.extract(r"^([A-Z]+\d+)"),
            "measured": scored["tokens_per_s_per_device"].log(),
            "physics": TransformerPhysics().log_throughput(scored),
            "predicted": said.log_mean,
            "low": low,
            "high": high,
            "chance": said.chance_to_run,
        }
    )


def scores(rows: pl.DataFrame) -> Scores:
    """Of rows with logs of throughput: errors relative to what was measured, rank, and the interval."""
    measured, said = rows["measured"].to_numpy(), rows["predicted"].to_numpy()
    error = np.abs(np.expm1(said - measured))
    low, high = rows["low"].to_numpy(), rows["high"].to_numpy()
    physics = rows["physics"].to_numpy()
    known = np.isfinite(physics)
    return {
        "median_error": float(np.median(error)),
        "mean_error": float(error.mean()),
        "worst_error": float(error.max()),
        "rank_correlation": ranked(said, measured),
        "rank_beyond_physics": ranked(said[known], measured[known], physics[known]),
        "coverage": float(((low <= measured) & (measured <= high)).mean()),
        "interval_score": float(interval_scores(measured, low, high).mean()),
    }


def ranked(said: np.ndarray, measured: np.ndarray, given: np.ndarray | None = None) -> float:
    """Spearman's; beyond ``given``, the partial one. 0, which is chance, where one is flat."""
    a, b = rankdata(said), rankdata(measured)
    if given is not None and len(given):
        known = np.column_stack([np.ones(len(given)), rankdata(given)])
        a, b = (each - known @ np.linalg.lstsq(known, each)[0] for each in (a, b))
    if len(a) < 3 or min(np.std(a), np.std(b)) < 1e-6:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def interval_scores(measured: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(n,) the width, and 2 / alpha times how far outside it the measured value lies; smaller is better."""
    outside = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
    return high - low + 2 / (1 - INTERVAL) * outside


def summarised(row: Row, drawn: Drawn) -> dict[str, Any]:
    """One row of the results: figures by method, and by task for ours."""
    each: dict[tuple[str, str], list[Scores]] = defaultdict(list)
    for (task, method, _), rows in drawn.items():
        each[method, task].append(scores(rows))
    tasks = {key: mean_of(found) for key, found in each.items()}
    methods = {
        name: mean_of([v for (m, _), v in tasks.items() if m == name])
        for name in dict.fromkeys(method for method, _ in tasks)
    }
    spread = [np.std([s[row.figure] for s in found]) for (m, _), found in each.items() if m == OURS]
    return {
        "row": row.name,
        "figure": row.figure,
        "reach": row.reach,
        "methods": methods,
        "standard_deviation_over_draws": float(np.mean(spread)),
        "tasks": {task: figures for (method, task), figures in tasks.items() if method == OURS},
    }


def mean_of(found: list[Scores]) -> Scores:
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def intervals(drawn: dict[str, Drawn]) -> dict[str, dict[str, Scores]]:
    """Coverage and interval score by accelerator and method; every task of every row counts the same."""
    parts: dict[tuple[str, str, str, str], list[Scores]] = defaultdict(list)
    for row, found in drawn.items():
        for (task, method, _), rows in found.items():
            for (platform,), own in rows.group_by("platform"):
                parts[str(platform), method, row, task].append(scores(own))
    pooled: dict[str, dict[str, list[Scores]]] = defaultdict(lambda: defaultdict(list))
    for (platform, method, *_), one_task in parts.items():
        pooled[platform][method].append(mean_of(one_task))
        pooled["all"][method].append(mean_of(one_task))
    said = {
        platform: {
            method: {name: mean_of(found)[name] for name in ("coverage", "interval_score")}
            for method, found in methods.items()
            if method in METHODS
        }
        for platform, methods in sorted(pooled.items())
    }
    for methods in said.values():
        for figures in methods.values():
            figures["over_raw_xgboost"] = figures["interval_score"] / methods[PEER]["interval_score"]
    return said


def memory(seeds: int) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """The rows on memory, where memory_tasks.py is there: its summary, and its per-row predictions."""
    if importlib.util.find_spec("memory_tasks") is None:
        return [], pl.DataFrame()
    tasks = importlib.import_module("memory_tasks")
    found = list(tasks.tasks(seeds))
    rows = [
        frame.drop("measured", strict=False).with_columns(task=pl.lit(task), method=pl.lit(method))
        for task, method, frame in found
    ]
    return tasks.summary(found), pl.concat(rows, how="diagonal_relaxed")


def kept(drawn: dict[str, Drawn], folder: Path) -> None:
    """One small file for each row: what was predicted, by trial id, in natural logs; nothing measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for row, found in drawn.items():
        parts = [
            rows.select(
                "trial_id",
                pl.lit(task).alias("task"),
                pl.lit(method).alias("method"),
                pl.lit(draw, dtype=pl.Int8).alias("draw"),
                pl.col("predicted", "low", "high", "chance").cast(pl.Float32),
            )
            for (task, method, draw), rows in found.items()
            if draw < KEPT_DRAWS
        ]
        name = "-".join("".join(c if c.isalnum() else " " for c in row).split())
        pl.concat(parts).write_parquet(folder / f"{name}.parquet", compression="zstd", compression_level=19)


def shown(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Errors relative to what was measured (✓ reaches, ✗ falls short of issue 3)")
    for column in ("task", "method", *SHOWN.values(), "in 90 %", "reach"):
        table.add_column(column, justify="left" if column in ("task", "method") else "right")
    for row in found:
        for method, figures in row["methods"].items():
            reach = "  ".join(
                f"{SHOWN[name]} {want:g} {'✓' if reached(name, figures[name], want) else '✗'}"
                for name, want in row["reach"].items()
            )
            table.add_row(
                row["row"] if method == OURS else "",
                method,
                *(f"{figures[name]:{'.2f' if 'rank' in name else '.1%'}}" for name in SHOWN),
                f"{figures['coverage']:.0%}",
                reach if method == OURS else "",
                end_section=method == [*row["methods"]][-1],
            )
    return table


def reached(name: str, value: float, want: float) -> bool:
    return value >= want if name == "rank_correlation" else value <= want


def shown_intervals(pooled: dict[str, dict[str, Scores]]) -> Table:
    table = Table(title="90 % intervals: share covered, score, and score over the raw conformal band's")
    for column in ("platform", *METHODS):
        table.add_column(column, justify="right")
    for platform, methods in pooled.items():
        cells = [
            f"{f['coverage']:.0%}  {f['interval_score']:.2f}  {f['over_raw_xgboost']:.2f}"
            for f in (methods[name] for name in METHODS)
        ]
        table.add_row(platform, *cells, end_section=platform == "all")
    return table


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gate", action="store_true", help="--quick, and compare with results/gate.json")
    parser.add_argument("--set-gate", action="store_true", help="--quick, and write results/gate.json")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    arguments = parser.parse_args()
    if not published.data_folder().is_dir():
        if arguments.gate:
            print(f"{published.data_folder()}: is missing; the gate is skipped", file=sys.stderr)
            return 0
        parser.error(f"{published.data_folder()}: is missing; set PRETUNE_SHARED")
    quick = arguments.quick or arguments.gate or arguments.set_gate
    rows = [row for row in ROWS if arguments.only in row.name and (row.quick or not quick)]
    began, found, drawn = time.perf_counter(), [], {}
    for row in rows:
        drawn[row.name] = predicted(row, QUICK_SEEDS if quick else arguments.seeds, control=not quick)
        found.append(summarised(row, drawn[row.name]))
        print(f"{time.perf_counter() - began:6.1f} s  {row.name}", file=sys.stderr)
    summary = {
        "seeds": QUICK_SEEDS if quick else arguments.seeds,
        "rows": found,
        "intervals": intervals(drawn),
        "seconds": round(time.perf_counter() - began, 1),
    }
    if not quick and not arguments.only:
        summary["memory"], rows_of_memory = memory(arguments.seeds)
        kept(drawn, RESULTS / "prediction")
        if len(rows_of_memory):
            rows_of_memory.write_parquet(RESULTS / "prediction" / "memory.parquet", compression="zstd")
        (RESULTS / "prediction.json").write_text(json.dumps(summary, indent=1) + "\n")
    if arguments.set_gate:
        gate.write(summary, RESULTS / "gate.json")
    if arguments.json:
        print(json.dumps(summary))
    else:
        Console(width=130).print(shown(found), shown_intervals(summary["intervals"]))
    if arguments.gate:
        worse = gate.worse(summary, RESULTS / "gate.json")
        print(*worse, sep="\n", file=sys.stderr)
        return bool(worse)
    return 0


if __name__ == "__main__":
    sys.exit(main())
