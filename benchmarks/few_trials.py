"""Few-trial tuning on other people's fully measured tables: pretune against what could be installed instead.

    python benchmarks/few_trials.py [SUITE ...] [--json] [--seeds 10] [--jobs 2]

Runs the named suites of ``PRETUNE_SHARED/bench`` (see PROTOCOL.md there): every table is the
target once, the others are history. Reports, per suite and method, the mean fraction of the best
throughput after k trials and its area over log2(k), pretune against the best other method with a
bootstrap interval over tasks and seeds, and every task's area. The picks, as row numbers of
the tables, are kept in results/few_trials.parquet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
from published import shared_folder
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "few_trials.parquet"
OURS = "pretune"
OTHERS = ("random", "source-order", "xgb-cold", "xgb-warm", "xgb-margin", "proto-leaf")
SHOWN_AT = (1, 2, 4, 8, 16)
COMPARED_AT = (4, 8, 16)

Run = dict[str, Any]


def played(suite: str, seeds: int, jobs: int) -> list[Run]:
    """Every method's picks and fractions on the suite's tasks."""
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        options = {
            "--seeds": str(seeds),
            "--jobs": str(jobs),
            "--methods": ",".join(OTHERS),
            "--add": f"{OURS}=peer:PretunePeer",
            "--traces": str(traces),
        }
        command = [sys.executable, str(shared_folder() / "bench" / "suite.py"), suite, "--"]
        command += [word for option in options.items() for word in option]
        environment = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        runs = [json.loads(line) for line in traces.read_text().splitlines()]
    for run in runs:
        if "error" in run:
            raise SystemExit(f"{suite}: {run['method']} failed on {run['task']}: {run['error']}")
    return [
        {
            "suite": suite,
            **{name: run[name] for name in ("method", "task", "seed", "picks")},
            "fractions": [round(value, 4) for value in run["fractions"]],
        }
        for run in runs
    ]


def summarised(runs: list[Run]) -> dict[str, Any]:
    """One suite's figures."""
    bench = harness()
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run["method"]].append(run)
    areas = {name: mean(bench.area(run["fractions"]) for run in group) for name, group in groups.items()}
    rival = max((name for name in groups if name != OURS), key=lambda name: areas[name])
    traces = {name: {(run["task"], run["seed"]): run for run in group} for name, group in groups.items()}
    tasks = sorted({run["task"] for run in runs})
    return {
        "suite": runs[0]["suite"],
        "methods": {
            name: {"area": areas[name]}
            | {f"after_{k}": mean(bench.at_budget(run, k) for run in group) for k in SHOWN_AT}
            for name, group in groups.items()
        },
        "rival": rival,
        "ahead_of_rival": bench.paired(traces, OURS, rival, list(COMPARED_AT)),
        "tasks": {
            task: {
                name: mean(bench.area(run["fractions"]) for run in group if run["task"] == task)
                for name, group in groups.items()
            }
            for task in tasks
        },
    }


def mean(values: Any) -> float:
    return round(statistics.fmean(values), 4)


def harness() -> Any:
    """The replay benchmark's own measures."""
    sys.path.insert(0, str(shared_folder() / "bench"))
    import bench  # type: ignore[import-not-found]

    return bench


def shown(summary: dict[str, Any]) -> Table:
    ahead = ", ".join(
        f"{cell['mean_diff']:+.3f} ({cell['ci95'][0]:+.3f} to {cell['ci95'][1]:+.3f}) at {k}"
        for k, cell in summary["ahead_of_rival"].items()
    )
    table = Table(
        title=f"{summary['suite']}, {len(summary['tasks'])} tasks: mean fraction of the best",
        caption=f"{OURS} ahead of {summary['rival']}: {ahead}",
    )
    for column in ("method", "area", *(f"@{k}" for k in SHOWN_AT)):
        table.add_column(column)
    for name, figures in sorted(summary["methods"].items(), key=lambda item: -item[1]["area"]):
        table.add_row(name, *(f"{value:.3f}" for value in figures.values()))
    return table


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    harness()
    import suite  # type: ignore[import-not-found]

    summaries = []
    kept = pl.read_parquet(RESULTS).to_dicts() if RESULTS.exists() else []
    for name in arguments.suites or list(suite.SUITES):
        runs = played(name, arguments.seeds, arguments.jobs)
        kept = [run for run in kept if run["suite"] != name] + runs
        pl.DataFrame(kept).write_parquet(RESULTS, compression="zstd", compression_level=19)
        summaries.append(summarised(runs))
        if not arguments.json:
            Console(width=110).print(shown(summaries[-1]))
    if arguments.json:
        print(json.dumps(summaries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
