"""``pretune campaign``: record a history: trials spread over the space, in random order, with controls."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Job, Json, Tracking, only_json, print_json


def campaign(
    job: Job,
    trials: Annotated[int, typer.Option(help="Configurations to try.", min=1)] = 60,
    control_every: Annotated[int, typer.Option(help="Trials between two of the default.", min=1)] = 12,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/<job name>-campaign.")] = None,
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Record many trials of JOB.yaml's space as history for other clusters. Started again, it goes on."""
    from pretune.cli.progress import watcher
    from pretune.mlflow_config import tracker
    from pretune.tuner.campaign import Campaign
    from pretune.tuner.job import JobSpec

    spec = JobSpec.from_yaml(job)
    folder = out or Path("runs") / f"{spec.name}-campaign"
    with only_json(as_json), watcher(spec) as watching:
        place = tracker(tracking, folder)
        answer = Campaign(spec, folder, trials, place, watching, control_every).run()
    if as_json:
        print_json(asdict(answer))
        return
    counts = ", ".join(f"{count} {status}" for status, count in answer.statuses.items())
    print(f"{counts} in {answer.store}")
    if answer.drift.trend is not None:
        print(
            f"the control moved by {answer.drift.trend - 1:+.1%} from the first third to the last, "
            f"spread {answer.drift.spread:.1%} over {answer.drift.controls} trials"
        )
