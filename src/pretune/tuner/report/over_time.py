"""The trials one after another, with the best so far and what was predicted; and those that failed."""

from __future__ import annotations

from collections import defaultdict

from pretune.datasets.trial import Trial
from pretune.tuner.report.gathered import COMPARING, Gathered, counted, naming
from pretune.tuner.tables import Cell, Section, Table
from pretune.tuner.tuner import fastest

_BRIEF = ("problem", "number", "status", "tokens/s per device", "predicted", "knobs")


def over_time(gathered: Gathered) -> Section:
    """Trials of the search; those that compare its winner with the defaults are in the answer."""
    searched = {
        name: [trial for trial in trials if trial.purpose not in COMPARING]
        for name, trials in gathered.problems.items()
    }
    records = [
        gathered.named(name) | row for name, trials in searched.items() for row in _rows(gathered, trials)
    ]
    ran = sum(record["status"] == "ok" for record in records)
    words = [f"{counted(len(records), 'trial')}, of which {ran:,} ran and {len(records) - ran:,} failed"]
    only = next(iter(searched.values())) if len(searched) == 1 else []
    if best := fastest(only):
        words.append(f"the fastest was trial {only.index(best) + 1}: {best.trial_id}")
    return Section("trials", "Trials over time", words, [Table.of(records, brief=_BRIEF)])


def _rows(gathered: Gathered, trials: list[Trial]) -> list[dict[str, Cell]]:
    name, best = naming(trials), 0.0
    rows: list[dict[str, Cell]] = []
    for number, trial in enumerate(trials, 1):
        speed, told = trial.tokens_per_s_per_device, gathered.predicted.get(trial.trial_id)
        best = max(best, speed or 0.0)
        rows.append(
            {
                "number": number,
                "status": str(trial.status),
                "tokens/s per device": speed,
                "best so far": best or None,
                "predicted": told.tokens_per_s_per_device if told else None,
                "predicted low": told.low if told else None,
                "predicted high": told.high if told else None,
                "chance to run": told.chance_to_run if told else None,
                "knobs": name(trial),
                "trial": trial.trial_id,
            }
        )
    return rows


def failures(gathered: Gathered) -> Section:
    """Failed trials by status and cause, the most frequent first."""
    by_cause: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in gathered.trials:
        if not trial.ok:
            by_cause[str(trial.status), str(trial.cause)].append(trial)
    records: list[dict[str, Cell]] = [
        {"status": status, "cause": cause, "trials": len(trials), "such as": trials[0].trial_id}
        for (status, cause), trials in sorted(by_cause.items(), key=lambda each: -len(each[1]))
    ]
    count = sum(map(len, by_cause.values()))
    words = (
        [f"{count:,} of {counted(len(gathered.trials), 'trial')} failed"] if count else ["no trial failed"]
    )
    return Section("failures", "Failed trials", words, [Table.of(records)] if records else [])
