"""What came of a script's trial on one node: by its recorder, else by what it printed and how it ended."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pretune.collector.reading import Outcome, Reading, outcomes, read_log
from pretune.collector.record import Recording
from pretune.collector.step_lines import StepLines
from pretune.collector.windows import relative_std_error
from pretune.datasets.frameworks.common import LAYOUT
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given
from pretune.datasets.platform import StatedPlatform
from pretune.datasets.schema import flatten
from pretune.datasets.trial import Status, Trial, TrialSpec

MEASURED = set(Trial.model_fields) - set(TrialSpec.model_fields)
MEASURED -= {"created_at", "status", "cause", "wall_s", "warm", "source"}  # known to the launcher
ASKED = (*(f"knob.{name}" for name in (*LAYOUT, "zero_stage")), "workload.sequence_length")
ASKED += ("workload.global_batch_tokens", "workload.global_batch_sequences", "platform.devices")


@dataclass(frozen=True)
class Verdict:
    """``status`` ok without ``measured``: nothing is wrong, and no step was seen; ``cause`` says why."""

    status: Status
    cause: str | None = None
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _InTheTrial(Reading):
    """The trial knows its device: whatever the log calls the same one is no contradiction."""

    def made(self, run: Run, path: Path, name: str) -> Trial | SetAside:
        told = run.values.items()
        values = {column: value for column, value in told if not column.startswith("accelerator.")}
        return super().made(replace(run, values=values), path, name)


def verdict(spec: TrialSpec, recording: Recording, handed: Mapping[str, Any] | None) -> Verdict:
    """After the script's end. ``handed``: the trial that a recorder in the script handed over."""
    if handed is not None:
        trial = Trial.model_validate(handed)
        return _of(spec, trial, flatten(trial))
    found = _read(spec, recording)
    if isinstance(found, SetAside):
        return Verdict(Status.OK, _silent(found.reason))
    run, trial = found[-1]
    if recording.ended.stopped_by and trial.status is Status.CRASH:
        return Verdict(Status.OK, "was stopped when another node had measured enough")
    here = recording.beside(run, trial) | {"hosts": []}  # the nodes' own files tell all of them
    return _of(spec, trial.model_copy(update=here), run.values)


def _silent(reason: str) -> str:
    return (
        "the script exits with code 0, but printed no step that can be measured "
        f"({reason}); give command: step_line, or use TrialRecorder in it"
    )


def _of(spec: TrialSpec, trial: Trial, said: Mapping[str, Any]) -> Verdict:
    """The verdict that a trial is, unless what it was ``said`` to be is not what was asked for."""
    if not trial.ok:
        return Verdict(trial.status, trial.cause)
    if wrong := contradiction(spec, said):
        return Verdict(Status.INVALID, wrong)
    measured = trial.model_dump(mode="json", include=MEASURED)
    spread = relative_std_error(trial.window_times_s)
    if trial.tokens_per_s_std_error is None and trial.tokens_per_s and spread is not None:
        measured["tokens_per_s_std_error"] = spread * trial.tokens_per_s
    return Verdict(Status.OK, None, measured)


def contradiction(spec: TrialSpec, said: Mapping[str, Any]) -> str | None:
    """What a script says that it does and the trial did not ask for; by column of the store."""
    asked = flatten(spec) | {"platform.devices": spec.platform.devices}
    asked["workload.global_batch_sequences"] = spec.workload.global_batch_sequences
    for column in ASKED:
        wanted, found = asked.get(column), said.get(column)
        if None not in (wanted, found) and wanted != found:
            name = column.split(".", 1)[1]
            return (
                f"the script trained with {name} {found}, the trial asked for {wanted}; its command must "
                "hand that on"
            )
    return None


def _read(spec: TrialSpec, recording: Recording) -> list[Outcome] | SetAside:
    """The trials that the output tells of: by the job's way of reading it, else by all that there are."""
    script, ended, path = spec.script, recording.ended, recording.log.path
    known = {name: value for name, value in flatten(spec).items() if value is not None}
    stated = Given(
        StatedPlatform.model_validate(spec.platform.model_dump()),
        {name: value for name, value in known.items() if name.startswith(("model.", "workload."))},
    )
    reading = _InTheTrial(uuid.uuid4().hex, stated, stated)
    steps = StepLines(script.step_line, recording.log.came_s)
    told = [] if script.log_format else outcomes(path, "steps", steps.read, ended, reading)
    by_steps = [each for each in told if not isinstance(each, SetAside)]
    found = read_log(path, script.log_format, ended, reading)
    if not isinstance(found, SetAside) and any(trial.ok for _, trial in found):
        if not script.step_line:
            return found
        found = SetAside(str(path), None, f"no line fits step_line {script.step_line}")
    asides = [each for each in told if isinstance(each, SetAside)]
    return by_steps or (next(iter(asides), found) if isinstance(found, SetAside) else found)
