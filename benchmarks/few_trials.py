"""Few-trial tuning on other people's fully measured tables: pretune against what could be installed instead.

    python benchmarks/few_trials.py [SUITE ...] [--json] [--seeds 10] [--jobs 2] [--play all|ours|none]

Runs the named suites of ``PRETUNE_SHARED/bench`` (see PROTOCOL.md there): every table is the
target once, the others are history. Reports, per suite and method, the mean fraction of the best
throughput after k trials and its area over log2(k), pretune against the best other method with a
bootstrap interval over tasks and seeds, and every task's area; then all suites together, and the tasks
where the sources' best in order does better. The picks, as row numbers of the tables, are kept in
results/few_trials.parquet: with ``--play ours`` those of the other methods stand, with ``--play none`` all.
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
FLOOR = "source-order"  # no task is to be worse by more than BELOW in area
BELOW = 0.02
FEW_TASKS = 6  # of a suite, to print each alone

Run = dict[str, Any]


def played(suite: str, seeds: int, jobs: int, others: bool) -> list[Run]:
    """Our picks and fractions on the suite's tasks, and, if asked for, those of the other methods."""
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        options = {
            "--seeds": str(seeds),
            "--jobs": str(jobs),
            "--methods": ",".join([*(OTHERS if others else ()), OURS]),
            "--add": f"{OURS}=peer:PretunePeer",
            "--traces": str(traces),
        }
        command = [sys.executable, str(shared_folder() / "bench" / "suite.py"), suite, "--"]
        command += [word for option in options.items() for word in option]
        paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
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
    """Figures of one suite, or of several together."""
    bench = harness()
    suites = sorted({run["suite"] for run in runs})
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run["method"]].append(run)
    areas = {name: mean(bench.area(run["fractions"]) for run in group) for name, group in groups.items()}
    rival = max((name for name in groups if name != OURS), key=lambda name: areas[name])
    traces = {name: {(task_of(run), run["seed"]): run for run in group} for name, group in groups.items()}
    tasks = sorted({task_of(run) for run in runs})
    by_task = {
        task: {
            name: mean(bench.area(run["fractions"]) for run in group if task_of(run) == task)
            for name, group in groups.items()
        }
        for task in tasks
    }
    below = {
        task: round(area[OURS] - area[FLOOR], 4)
        for task, area in by_task.items()
        if area[OURS] < area[FLOOR] - BELOW
    }
    return {
        "suite": suites[0] if len(suites) == 1 else f"all {len(suites)} suites",
        "methods": {
            name: {"area": areas[name]}
            | {f"after_{k}": mean(bench.at_budget(run, k) for run in group) for k in SHOWN_AT}
            for name, group in groups.items()
        },
        "rival": rival,
        "ahead_of_rival": bench.paired(traces, OURS, rival, list(COMPARED_AT)),
        "tasks": by_task,
        f"below_{FLOOR}": dict(sorted(below.items(), key=lambda item: item[1])),
    }


def task_of(run: Run) -> str:
    """Two suites may have a task of one name."""
    return f"{run['suite']}: {run['task']}"


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


def shown_tasks(summary: dict[str, Any]) -> Table:
    """The area of each task alone, where they are few; else of those that are below the floor."""
    below = summary[f"below_{FLOOR}"]
    tasks = summary["tasks"] if len(summary["tasks"]) <= FEW_TASKS else below
    title = (
        f"{summary['suite']}: {len(below)} of {len(summary['tasks'])} tasks more than {BELOW} below {FLOOR}"
    )
    methods = list(dict.fromkeys((OURS, FLOOR, summary["rival"])))
    table = Table("task", *methods, title=title)
    for task in tasks:
        area = summary["tasks"][task]
        table.add_row(task, *(f"{area[name]:.3f}" for name in methods))
    return table


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--play", choices=("all", "ours", "none"), default="all")
    arguments = parser.parse_args()
    harness()
    import suite  # type: ignore[import-not-found]

    summaries = []
    kept = pl.read_parquet(RESULTS).to_dicts() if RESULTS.exists() else []
    for name in arguments.suites or list(suite.SUITES):
        if arguments.play != "none":
            runs = played(name, arguments.seeds, arguments.jobs, others=arguments.play == "all")
            renewed = {run["method"] for run in runs}
            kept = [run for run in kept if run["suite"] != name or run["method"] not in renewed] + runs
            pl.DataFrame(kept).write_parquet(RESULTS, compression="zstd", compression_level=19)
        summaries.append(summarised([run for run in kept if run["suite"] == name]))
    if len(summaries) > 1:
        names = {summary["suite"] for summary in summaries}
        summaries.append(summarised([run for run in kept if run["suite"] in names]))
    if arguments.json:
        print(json.dumps(summaries))
        return 0
    for summary in summaries:
        Console(width=110).print(shown(summary), shown_tasks(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
