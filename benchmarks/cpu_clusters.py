"""Few trials on a cluster that was left out: ours against defaults, random, and the sources' best in order.

    python benchmarks/cpu_clusters.py [--json]            replayed from the recorded tables, 20 seeds
    sudo python benchmarks/cpu_clusters.py --live         real trials on the 200 Mbit/s cluster, 3 seeds

Every cluster of the shipped history is the target once, with the trials of the others as
history (for a slow link, of those without one), and a budget of 6 trials. The score is the
throughput of the best configuration held after k trials over the best known there; before
the first success it is 0. The per-row picks, and the raw records of the live trials, are
kept under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from pretune.collector.evidence import write_json
from pretune.collector.launchers import launcher_for
from pretune.collector.launchers.base import Launcher
from pretune.datasets import Knobs, Platform, Trial, TrialSpec, TrialStore, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.schema import to_table
from pretune.datasets.store import shipped_history
from pretune.mlflow_config.none import NoTracker
from pretune.tuner.runner import TrialRunner, Watcher
from pretune.tuner.space import Candidates, key
from pretune.tuner.tuner import Tuner, fastest

sys.path.insert(0, str(Path(__file__).resolve().parent / "clusters"))
from record import CAMPAIGNS, bring_up, cluster, job

RESULTS = Path(__file__).resolve().parent / "results"
BUDGET = 6
STRATEGIES = ("transfer", "source-order", "random")
LIVE_STRATEGIES = ("transfer", "random")
SLOW = {"cpu-1gbit", "cpu-200mbit"}
LIVE, LIVE_SEEDS, FINAL_ROUNDS = "cpu-200mbit", 3, 3


def sources_of(target: str, platforms: list[str]) -> list[str]:
    """The other clusters; for a slow link, those without one."""
    left_out = SLOW if target in SLOW else {target}
    return [name for name in platforms if name not in left_out]


def recorded() -> dict[tuple[str, str], list[Trial]]:
    """The shipped trials by (platform, model)."""
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in shipped_history().trials():
        groups[trial.platform.name, trial.workload.model.name].append(trial)
    return groups


def history(groups: dict[tuple[str, str], list[Trial]], names: list[str]) -> pl.DataFrame:
    trials = [trial for (platform, _), group in groups.items() if platform in names for trial in group]
    return pl.DataFrame(to_table(trials))


class TableOfOne:
    """One recorded table: a configuration's trial is its repeat with the median throughput."""

    def __init__(self, trials: list[Trial]) -> None:
        repeats: dict[Any, list[Trial]] = defaultdict(list)
        for trial in trials:
            repeats[key(trial.knobs)].append(trial)
        self.trials = {k: _median(group) for k, group in repeats.items()}
        first = trials[0]
        knobs = [trial.knobs for trial in self.trials.values()]
        self.candidates = Candidates(first.workload, first.platform, first.framework, knobs)
        self.best = max(trial.tokens_per_s or 0.0 for trial in self.trials.values())

    def of(self, knobs: Knobs) -> Trial:
        return self.trials[key(knobs)]

    def score(self, knobs: Knobs) -> float:
        return (self.of(knobs).tokens_per_s or 0.0) / self.best


def _median(trials: list[Trial]) -> Trial:
    ordered = sorted(trials, key=lambda trial: trial.tokens_per_s or 0.0)
    return ordered[len(ordered) // 2]


def replay(seeds: int) -> list[dict[str, Any]]:
    """One row per (target, model, strategy, seed): the score after each trial, and the picks."""
    groups = recorded()
    platforms = sorted({platform for platform, _ in groups})
    rows = []
    for (platform, model), trials in sorted(groups.items()):
        table = TableOfOne(trials)
        sources = history(groups, sources_of(platform, platforms))
        default = framework("deepspeed").default_knobs(table.candidates.workload, table.candidates.platform)
        start = {"platform": platform, "model": model}
        rows.append({**start, "strategy": "default", "seed": 0, "scores": [table.score(default)] * BUDGET})
        for strategy in STRATEGIES:
            for seed in range(seeds):
                picks, scores = _replayed(table, sources, strategy, seed)
                rows.append({**start, "strategy": strategy, "seed": seed, "scores": scores, "picks": picks})
    return rows


def _replayed(
    table: TableOfOne, sources: pl.DataFrame, strategy: str, seed: int
) -> tuple[list[str], list[float]]:
    tuner = Tuner(table.candidates, sources, strategy, seed)
    picks, scores, held = [], [], 0.0
    for _ in range(BUDGET):
        trial = table.of(tuner.ask()[0].knobs)
        tuner.tell(trial)
        held = max(held, (trial.tokens_per_s or 0.0) / table.best)
        picks.append(trial.trial_id)
        scores.append(held)
    return picks, scores


# -- live ---------------------------------------------------------------------------
class Live:
    """Real trials on the 200 Mbit/s cluster: each strategy and seed searches, then all answers are compared.

    The answers, the default, and the best configuration that the recorded history of that
    cluster knows are run again in turn, so that a lucky trial does not flatter its method.
    """

    def __init__(self, out: Path) -> None:
        self.out, self.store = out, TrialStore(out / "trials")
        self.groups = recorded()
        self.platform: Platform = next(iter(self.groups[LIVE, CAMPAIGNS[0][0]])).platform
        self.launcher_settings = bring_up(LIVE)
        model, tokens, _ = CAMPAIGNS[0]
        self.job = job(LIVE, model, tokens, self.platform, self.launcher_settings)
        self.candidates = self.job.candidates(self.platform)

    def run(self) -> dict[str, Any]:
        names = sources_of(LIVE, sorted({platform for platform, _ in self.groups}))
        sources = history(self.groups, names)
        with launcher_for(self.launcher_settings, self.out / "runs") as launcher:
            self._runner(launcher)
            answers = {
                f"{strategy}-{seed}": self._searched(strategy, seed, sources)
                for seed in range(LIVE_SEEDS)
                for strategy in LIVE_STRATEGIES
            }
            return self._compared(answers)

    def _runner(self, launcher: Launcher) -> None:
        self.runner = TrialRunner(launcher, self.store, self.out / "runs", NoTracker(), Watcher())

    def _trial(self, trial_id: str, purpose: Any, knobs: Knobs, seed: int) -> Trial:
        workload: Workload = self.candidates.workload
        spec = TrialSpec(
            trial_id=trial_id,
            session_id="live",
            purpose=purpose,
            workload=workload,
            platform=self.platform,
            knobs=knobs,
            seed=seed,
            measure=self.job.measure,
        )
        trial = self.runner.run(trial_id, lambda: (spec, None))
        assert trial is not None
        print(f"{trial_id}: {trial.status} {trial.tokens_per_s or trial.cause}", file=sys.stderr, flush=True)
        return trial

    def _searched(self, strategy: str, seed: int, sources: pl.DataFrame) -> Knobs:
        tuner = Tuner(self.candidates, sources, strategy, seed)
        for number in range(BUDGET):
            knobs = tuner.ask()[0].knobs
            tuner.tell(self._trial(f"live-{strategy}-{seed}-t{number}", "search", knobs, seed))
        best = tuner.best()
        return best.knobs if best else self.job.default_knobs(self.platform)

    def _compared(self, answers: dict[str, Knobs]) -> dict[str, Any]:
        known = fastest(self.groups[LIVE, self.candidates.workload.model.name])
        assert known is not None
        contenders = {
            "best-recorded": known.knobs,
            "default": self.job.default_knobs(self.platform),
            **answers,
        }
        speeds: dict[Any, list[float]] = defaultdict(list)
        distinct = {key(knobs): knobs for knobs in contenders.values()}
        for round_number in range(FINAL_ROUNDS):
            turn = list(distinct.items())[:: 1 if round_number % 2 == 0 else -1]
            for number, (name, knobs) in enumerate(turn):
                trial = self._trial(f"live-final-{round_number}-{number}", "verify", knobs, 0)
                speeds[name].append(trial.tokens_per_s or 0.0)
        mean = {name: statistics.mean(values) for name, values in speeds.items()}
        best = max(mean.values())
        return {name: mean[key(knobs)] / best for name, knobs in contenders.items()}


# -- tables -------------------------------------------------------------------------
def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["platform"], row["model"], row["strategy"]].append(row)
    return [
        {
            "platform": platform,
            "model": model,
            "strategy": strategy,
            **{f"after_{k}": statistics.mean(r["scores"][k - 1] for r in group) for k in (1, 2, 4, 6)},
            "worst_after_6": min(r["scores"][BUDGET - 1] for r in group),
        }
        for (platform, model, strategy), group in groups.items()
    ]


def shown(summary: list[dict[str, Any]]) -> Table:
    table = Table(title="fraction of the best known throughput, mean over seeds")
    for column in summary[0]:
        table.add_column(column)
    for row in summary:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else value for value in row.values()))
    return table


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/live"))
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if arguments.live:
        try:
            live = Live(arguments.out)
            fractions = live.run()
        finally:
            cluster("down")
        TrialStore(RESULTS / "cpu_clusters_live").append(list(live.store.trials()))
        write_json(RESULTS / "cpu_clusters_live.json", fractions)
        print(json.dumps(fractions, indent=1))
        return 0
    rows = replay(arguments.seeds)
    write_json(RESULTS / "cpu_clusters_replay.json", rows)
    summary = summarised(rows)
    if arguments.json:
        print(json.dumps(summary))
    else:
        Console(width=110).print(shown(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
