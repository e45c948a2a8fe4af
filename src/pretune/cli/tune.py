"""``pretune tune``: search within a budget, compare with the defaults, write files ready to use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli.options import HistoryDir, Job, Json, Tracking, only_json, print_json

if TYPE_CHECKING:
    from pretune.tuner.answer import Answer


def tune(
    job: Job,
    budget: Annotated[int | None, typer.Option(help="Trials of the search.", min=1)] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes of the search.", min=0.01)] = None,
    device_hours: Annotated[
        float | None, typer.Option(help="Device-hours of the whole session.", min=0.001)
    ] = None,
    cost: Annotated[
        float | None, typer.Option(help="Cost of the whole session, at budget.price_per_device_hour.")
    ] = None,
    history: HistoryDir = None,
    out: Annotated[Path | None, typer.Option(help="Session folder. Default: runs/<job name>.")] = None,
    strategy: Annotated[str | None, typer.Option(help="transfer, source-order or random.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the strategy and of the trials.")] = None,
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Find the fastest configuration for JOB.yaml in real trials. Started again, it goes on."""
    from pretune.cli.progress import watcher
    from pretune.cli.show_answer import show_answer, show_side_by_side
    from pretune.cli.ui import page_command
    from pretune.mlflow_config import tracker
    from pretune.tuner.batches import SideBySide, tune_batches
    from pretune.tuner.job import JobSpec
    from pretune.tuner.session import TuningSession

    spec = JobSpec.from_yaml(job).changed(
        history, strategy, seed, trials=budget, minutes=minutes, device_hours=device_hours, cost=cost
    )
    folder = out or Path("runs") / spec.name
    with only_json(as_json), watcher(spec) as watching:
        try:
            told = tracker(tracking, folder)
            if len(spec.global_batches) > 1:
                answer: Answer | SideBySide = tune_batches(spec, folder, told, watching)
            else:
                answer = TuningSession(spec, folder, told, watching).run()
        except KeyboardInterrupt:
            print(f"interrupted; to go on: {_again()}", file=sys.stderr)
            raise typer.Exit(130) from None
    if as_json:
        print_json(answer.asdict())
    elif isinstance(answer, SideBySide):
        show_side_by_side(answer, page_command(folder, tracking))
    else:
        show_answer(answer, page_command(folder, tracking))
    if not answer.found:
        raise typer.Exit(1)


def _again() -> str:
    import shlex

    return f"pretune {shlex.join(sys.argv[1:])}"
