"""Performance portability: policies of tuning on the shipped CPU platforms, and what published runs tell.

    python benchmarks/portability.py [--seeds 5]

Writes ``results/portability.json`` and two cascades under ``docs``. Of published runs only ratios are
written: scores over platforms, and the share of a platform's best that one tuned elsewhere keeps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from published import data_folder

from pretune.datasets.importers import importer
from pretune.datasets.importers.account import import_files
from pretune.datasets.importers.complete import Given
from pretune.datasets.store import TrialStore, shipped_history
from pretune.datasets.trial import Trial
from pretune.model.plots import cascade_plot
from pretune.tuner.portability import Outcome, Portability, portability

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
DRAWN = "llama-mini"  # of the shipped problems: the one whose policies part most
EACH = "tuned on each"
BUDGET = 6  # trials of pretune's own policy
DIGITS = 4


def published_trials() -> list[Trial]:
    """The shared data as ``pretune import csv`` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        store = TrialStore(folder)
        import_files(importer("csv")(), [data_folder()], Given(None, {}), store)
        return list(store.trials())


def of(problem: Portability, policy: str) -> Outcome:
    return next(outcome for outcome in problem.outcomes if outcome.policy == policy)


def carried(problem: Portability) -> list[dict[str, Any]]:
    """What a configuration tuned on one platform keeps of another one's best, where somebody ran it there."""
    found = []
    for origin in problem.platforms:
        shares = of(problem, f"tuned on {origin}").efficiencies["application"]
        for target, share, searched in zip(problem.platforms, shares, problem.searched, strict=True):
            if target != origin and share is not None and searched > 1:
                found.append({"from": origin, "to": target, "share": round(share, DIGITS)})
    return found


def told(problem: Portability) -> dict[str, Any]:
    """A published problem in scores: model FLOPs utilisation where shapes are stated, and what is carried."""
    mfu = of(problem, EACH).scores["architectural"]
    return {
        "problem": problem.problem,
        "platforms": problem.platforms,
        "configurations": problem.searched,
        "model_flops_utilisation": mfu and rounded(mfu.asdict()),
        "carried": carried(problem),
    }


def rounded(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: rounded(value) for name, value in data.items()}
    if isinstance(data, list):
        return [rounded(value) for value in data]
    return round(data, DIGITS) if isinstance(data, float) else data


def summary(problems: list[dict[str, Any]]) -> dict[str, Any]:
    shares = [each["share"] for problem in problems for each in problem["carried"]]
    return {
        "problems": len(problems),
        "with_shapes": sum(problem["model_flops_utilisation"] is not None for problem in problems),
        "carried": len(shares),
        "carried_median": rounded(statistics.median(shares)),
        "carried_worst": min(shares),
    }


def draw(shipped: list[Portability], published: list[Portability]) -> None:
    problem = next(each for each in shipped if each.problem.startswith(DRAWN))
    lines = {
        outcome.policy: [share for share in outcome.efficiencies["application"] if share is not None]
        for outcome in problem.outcomes
        if outcome.scores["application"]
    }
    cascade_plot(lines, problem.problem, DOCS / "portability-cpu.svg")
    utilised = {}
    for each in published:
        found = of(each, EACH)
        if found.scores["architectural"]:
            shares = [share or 0.0 for share in found.efficiencies["architectural"]]
            utilised[each.problem.partition(" (")[0]] = shares
    title = "published runs, the fastest on each accelerator"
    cascade_plot(utilised, title, DOCS / "portability-published.svg", "model FLOPs utilisation")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="replays of pretune's own policy")
    seeds = parser.parse_args().seeds
    shipped = portability(
        list(shipped_history().trials()),
        budget=BUDGET,
        seeds=seeds,
        progress=lambda done, of, left: print(f"{done} of {of} replays, {left} s left", file=sys.stderr),
    )
    published = portability(published_trials(), budget=0)
    problems = [told(problem) for problem in published]
    figures = {
        "shipped": [rounded(problem.asdict()) for problem in shipped],
        "published": {"summary": summary(problems), "problems": problems},
    }
    (HERE / "results" / "portability.json").write_text(json.dumps(figures, indent=1) + "\n")
    draw(shipped, published)
    print(json.dumps(figures["published"]["summary"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
