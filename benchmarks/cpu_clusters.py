"""Few trials on a cluster that was left out: ours against defaults, random, and the sources' best in order.

    python benchmarks/cpu_clusters.py [--json]            replayed from the recorded tables, 20 seeds
    sudo python benchmarks/cpu_clusters.py --live         real trials on the 200 Mbit/s cluster, 3 seeds

Every cluster of the shipped history is the target once, with the trials of the others as
history (for a slow link, of those without one), and a budget of 6 trials. The score is the
throughput of the best configuration held after k trials over the best known there; before
the first success it is 0. In the replay the candidates are the configurations that were
recorded; the sources measured all of them or, with a share of 0.5, a random half. The picks, and
the raw records of the live trials, whose candidates are the whole space, are kept under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import itertools
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
from pretune.tuner.runner import TrialRunner, Watcher, Work
from pretune.tuner.space import Candidates, key
from pretune.tuner.strategies.source_order import chosen
from pretune.tuner.tuner import Tuner, fastest
from pretune.tuner.verify import Measured, ratio, rounds

sys.path.insert(0, str(Path(__file__).resolve().parent / "clusters"))
from record import CAMPAIGNS, bring_up, cluster, job

RESULTS = Path(__file__).resolve().parent / "results"
BUDGET = 6
STRATEGIES = ("transfer", "source-order", "random")
LIVE_STRATEGIES = ("transfer", "random")
SHARES = (1.0, 0.5)  # of the target's configurations that the sources measured too
SLOW = {"cpu-1gbit", "cpu-200mbit"}
LIVE, LIVE_SEEDS, FINAL_ROUNDS = "cpu-200mbit", 3, 5


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
    """One row per (target, model, share, strategy, seed): the score after each trial, and the picks."""
    groups = recorded()
    platforms = sorted({platform for platform, _ in groups})
    rows = []
    for (platform, model), trials in sorted(groups.items()):
        table = TableOfOne(trials)
        sources = history(groups, sources_of(platform, platforms))
        default = framework("deepspeed").default_knobs(table.candidates.workload, table.candidates.platform)
        for share, strategy in itertools.product(SHARES, STRATEGIES):
            start = {"platform": platform, "model": model, "share": share, "default": table.score(default)}
            for seed in range(seeds):
                known = thinned(sources, table, share, seed)
                picks, scores = _replayed(table, known, strategy, seed)
                rows.append({**start, "strategy": strategy, "seed": seed, "scores": scores, "picks": picks})
    return rows


def thinned(sources: pl.DataFrame, table: TableOfOne, share: float, seed: int) -> pl.DataFrame:
    """The sources' trials of a random ``share`` of the target's configurations, and of all others."""
    if share == 1.0:
        return sources
    frame = table.candidates.frame
    lost = frame.sample(len(frame) - round(share * len(frame)), seed=seed)
    knobs = chosen(frame)
    same = lost.select(pl.col(name).cast(sources.schema[name]) for name in knobs)
    return sources.join(same, on=knobs, how="anti", nulls_equal=True)


def _replayed(
    table: TableOfOne, sources: pl.DataFrame, strategy: str, seed: int
) -> tuple[list[str], list[float]]:
    tuner = Tuner.over(table.candidates, sources, strategy, seed)
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

    def run(self) -> list[dict[str, Any]]:
        """One row per contender, the searches' answers among them."""
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
        self.runner = TrialRunner([launcher], self.store, self.out / "runs", NoTracker(), Watcher())

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
        trial = self.runner.run(Work(trial_id, lambda: (spec, None)))
        assert trial is not None
        print(f"{trial_id}: {trial.status} {trial.tokens_per_s or trial.cause}", file=sys.stderr, flush=True)
        return trial

    def _searched(self, strategy: str, seed: int, sources: pl.DataFrame) -> Knobs | None:
        tuner = Tuner.over(self.candidates, sources, strategy, seed)
        for number in range(BUDGET):
            knobs = tuner.ask()[0].knobs
            tuner.tell(self._trial(f"live-{strategy}-{seed}-t{number}", "search", knobs, seed))
        best = tuner.best()
        return best.knobs if best else None

    def _compared(self, answers: dict[str, Knobs | None]) -> list[dict[str, Any]]:
        """Fractions of the fastest contender, from rounds run in turn, with their 95 % intervals."""
        known = fastest(self.groups[LIVE, self.candidates.workload.model.name])
        assert known is not None
        contenders = {
            "best-recorded": known.knobs,
            "default": self.job.default_knobs(self.platform),
            **answers,
        }
        distinct = {key(knobs): Measured(knobs) for knobs in contenders.values() if knobs}
        numbered = list(enumerate(distinct.values()))
        for round_number, turn in rounds(numbered, FINAL_ROUNDS):
            for number, measured in turn:
                trial_id = f"live-final-{round_number}-{number}"
                measured.trials.append(self._trial(trial_id, "verify", measured.knobs, 0))
        best = max(distinct.values(), key=lambda each: each.tokens_per_s_per_device or 0.0)
        return [
            {"contender": name}
            | (ratio(distinct[key(knobs)], best).asdict() | distinct[key(knobs)].asdict() if knobs else {})
            for name, knobs in contenders.items()
        ]


# -- tables -------------------------------------------------------------------------
def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for platform, model in ((row["platform"], row["model"]), ("mean", "")):
            groups[platform, model, row["share"], row["strategy"]].append(row)
    return [
        {
            "platform": platform,
            "model": model,
            "share": share,
            "strategy": strategy,
            "default": statistics.mean(r["default"] for r in group),
            **{f"after_{k}": statistics.mean(r["scores"][k - 1] for r in group) for k in (1, 2, 4, 6)},
            "worst_after_6": min(r["scores"][BUDGET - 1] for r in group),
        }
        for (platform, model, share, strategy), group in sorted(groups.items())
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
            rows = live.run()
        finally:
            cluster("down")
        TrialStore(RESULTS / "cpu_clusters_live").append(list(live.store.trials()))
        write_json(RESULTS / "cpu_clusters_live.json", rows)
        print(json.dumps(rows, indent=1))
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
