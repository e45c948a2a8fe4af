"""``pretune portability``: how well each way of tuning holds up over a set of platforms."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli.options import Json, print_json

if TYPE_CHECKING:
    from pretune.tuner.portability.replay import Progress

PRINT_S = 30.0  # between two lines of progress where there is no terminal


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
    everything: Annotated[
        bool, typer.Option("--all", help="A table for each problem, however many there are.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Pennycook's metric of LLM pretraining: policies of tuning, over platforms."""
    from pretune.datasets.trial import Trial
    from pretune.tuner.job import find_store
    from pretune.tuner.portability import portability as judged

    trials: list[Trial] = list(find_store(history).trials())
    wanted = [name.strip() for name in platforms.split(",")] if platforms else []
    with replay_progress(budget) as progress:
        found = judged(trials, wanted, budget, seeds, progress)
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

        show_portability(found, everything)
        for name in files:
            print(f"cascade: {name}")


@contextmanager
def replay_progress(budget: int) -> Iterator[Progress]:
    """Says how many replays there will be before the first one, and then how long the rest takes."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    said_s = -PRINT_S
    with Bar(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"replaying {budget} trials", visible=False)

        def told(done: int, of: int, left_s: float | None) -> None:
            nonlocal said_s
            bar.update(task, completed=done, total=of, visible=True)
            if left_s is None:
                text = f"{of} replays of {budget} trials for pretune's own policy; --budget 0 leaves them out"
                console.print(text, highlight=False, soft_wrap=True)
            elif not console.is_terminal and time.monotonic() - said_s >= PRINT_S:
                said_s = time.monotonic()
                text = f"{done} of {of} replays done, about {left_s / 60:.1f} minutes left"
                print(text, file=sys.stderr, flush=True)

        yield told
