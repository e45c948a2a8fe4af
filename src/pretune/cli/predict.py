"""``pretune predict``: what the history says of a job's space, without running anything."""

from __future__ import annotations

from typing import Annotated

import typer

from pretune.cli.options import HistoryDir, Job, Json, only_json, print_json


def predict(
    job: Job,
    top: Annotated[int, typer.Option(help="Configurations to show.", min=1)] = 10,
    history: HistoryDir = None,
    as_json: Json = False,
) -> None:
    """Rank the space of JOB.yaml by predicted tokens per second, without any trial."""
    from pretune.tuner.job import JobSpec
    from pretune.tuner.runner import Watcher
    from pretune.tuner.session import platform_of
    from pretune.tuner.tuner import Tuner

    spec = JobSpec.from_yaml(job).changed(history=history)
    with only_json(as_json):
        platform = platform_of(spec)
        candidates = spec.candidates(platform)
        tuner = Tuner.over(candidates, spec.history_frame(Watcher().note), "transfer", spec.seed)
        ranking = [
            {"knobs": found.knobs.settings(), "predicted": found.predicted and found.predicted.asdict()}
            for found in tuner.ranking(top)
        ]
        believed = tuner.strategy.predict()
    result = {
        "job": spec.name,
        "workload": candidates.workload.name,
        "platform": platform.name,
        "candidates": len(candidates),
        "dropped": dict(candidates.dropped),
        "provenance": believed.provenance if believed else {},
        "ranking": ranking,
    }
    if as_json:
        print_json(result)
    else:
        from pretune.cli.show import show_ranking

        show_ranking(result, list(spec.space))
