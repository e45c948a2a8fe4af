"""A job file: its space is legal when anything in it can run."""

from __future__ import annotations

from pathlib import Path

from pretune.datasets.frameworks.base import Problem
from pretune.datasets.platform import Accelerator, Platform
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError
from pretune.tuner.check.devices import Devices
from pretune.tuner.check.verdict import Verdict
from pretune.tuner.job import JobSpec


def judge(path: Path, devices: Devices, model: ModelSpec | None) -> Verdict:
    """The job's own platform, with ``devices`` in place of its count. Raises :class:`InputError`."""
    job = JobSpec.from_yaml(path)
    if model is not None:
        job = job.model_copy(update={"model": model})
    verdict = Verdict(job.framework)
    if len(set(devices.nodes)) > 1:
        shown = " + ".join(map(str, devices.nodes))
        reason = f"{shown}: a platform has as many devices on every node; leave out what is over"
        verdict.problems.append(Problem("devices", reason, devices.even()))
        return verdict
    shape = {"devices_per_node": devices.nodes[0], "nodes": len(devices.nodes)}
    given = job.platform
    if given == "auto":  # what decides is the number of devices
        given = Platform(name="check", accelerator=Accelerator(name="any"), **shape)
    platform = given.model_copy(update=shape)
    space = job.space_of_knobs()
    verdict.combinations = space.count
    try:
        candidates = job.candidates(platform)
    except InputError as error:
        verdict.problems.append(Problem("space", str(error).split(": ", 2)[-1]))
        return verdict
    verdict.warnings = [
        Problem(reason.split(": ", 1)[0], f"{reason.split(': ', 1)[-1]} ({n} combinations)")
        for reason, n in candidates.dropped.items()
    ]
    verdict.legal_combinations = len(candidates)
    first = candidates.knobs[0].settings()
    verdict.resolved = {
        "devices": platform.devices,
        "global_batch_sequences": candidates.workload.global_batch_sequences,
        **first,
    }
    return verdict
