"""``pretune comm``: what configurations of a job send, before anything runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pretune.cli.options import HistoryDir, Job, Json, only_json, print_json


def comm(
    job: Job,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="Show this configuration, not the predicted best."),
    ] = None,
    history: HistoryDir = None,
    as_json: Json = False,
) -> None:
    """Show each collective of one step of JOB.yaml, its messages and their time, beside the defaults'."""
    from pretune.tuner.comm import communication
    from pretune.tuner.job import JobSpec
    from pretune.tuner.runner import Watcher
    from pretune.tuner.session import platform_of
    from pretune.tuner.tuner import Tuner

    spec = JobSpec.from_yaml(job).changed(history=history)
    with only_json(as_json):
        candidates = spec.candidates(platform_of(spec))
        known = spec.history_frame(Watcher().note)
        if set_:
            chosen = spec.resolved(candidates.platform, _read(set_), "--set")
        else:
            chosen = Tuner.over(candidates, known, "transfer", spec.seed).ranking(1)[0].knobs
        both = {
            "chosen" if set_ else "predicted best": chosen,
            "defaults": spec.default_knobs(candidates.platform),
        }
        found = communication(both, candidates, known, spec.seed)
    result = {
        "job": spec.name,
        "workload": candidates.workload.name,
        "platform": candidates.platform.name,
        "configurations": [each.asdict() for each in found],
    }
    if as_json:
        print_json(result)
    else:
        from pretune.cli.show import show_communication

        show_communication(result)


def _read(settings: list[str]) -> dict[str, Any]:
    """``KNOB=VALUE`` as YAML reads the value. Raises :class:`InputError` naming what is neither."""
    import yaml

    from pretune.errors import InputError

    found = {}
    for each in settings:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InputError(f"--set {each}: is no KNOB=VALUE, such as zero_stage=3")
        found[name] = yaml.safe_load(value)
    return found
