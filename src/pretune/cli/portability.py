"""``pretune portability``: how well each way of tuning holds up over a set of platforms."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Json, print_json


def portability(
    history: Annotated[str, typer.Option(help="Store of trials: a folder, a URL, or 'shipped'.")] = "shipped",
    platforms: Annotated[
        str | None, typer.Option(help="The set, by names with commas. Default: one of each kind of hardware.")
    ] = None,
    budget: Annotated[int, typer.Option(help="Trials of pretune's own policy; 0 leaves it out.", min=0)] = 6,
    seeds: Annotated[int, typer.Option(help="Replays of pretune's own policy.", min=1)] = 5,
    plot: Annotated[
        Path | None, typer.Option(help="Cascade plots go there, one file per problem: a folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pennycook's metric of LLM pretraining: policies of tuning, over platforms."""
    from pretune.datasets.trial import Trial
    from pretune.tuner.job import find_store
    from pretune.tuner.portability import portability as judged

    trials: list[Trial] = list(find_store(history).trials())
    wanted = [name.strip() for name in platforms.split(",")] if platforms else []
    found = judged(trials, wanted, budget, seeds, lambda text: print(text, file=sys.stderr))
    files = []
    if plot is not None:
        from pretune.model.plots import cascade_plot

        plot.mkdir(parents=True, exist_ok=True)
        for number, each in enumerate(found, 1):
            lines = {
                outcome.policy: [e for e in outcome.efficiencies["application"] if e is not None]
                for outcome in each.outcomes
                if outcome.scores["application"]
            }
            files.append(str(cascade_plot(lines, each.problem, plot / f"cascade-{number}.svg")))
    if as_json:
        print_json({"history": history, "problems": [each.asdict() for each in found], "plots": files})
    else:
        from pretune.cli.show import show_portability

        show_portability(found)
        for name in files:
            print(f"cascade: {name}")
