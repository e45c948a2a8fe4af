"""What the output of a command says of its trials: the format is found, the exit code has its say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.collector.passthrough import Ended
from pretune.datasets.importers import importer
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import MEASURED, Given, complete
from pretune.datasets.importers.lines import numbered
from pretune.datasets.importers.runlog import Failures
from pretune.datasets.trial import Status, Trial
from pretune.errors import InputError

LOGS = ("deepspeed", "megatron", "mlperf", "nemo", "torchtitan")  # formats of what training prints
Outcome = tuple[Run, Trial]
Found = Sequence[Outcome | SetAside]
Read = Callable[[Path], Iterable[Run | SetAside]]  # of an importer


@dataclass(frozen=True)
class Reading:
    """``invocation`` tells this command from all others, also from the same one started again. What the user
    states beside the log; ``here`` with the platform that was seen, for logs that name no accelerator."""

    invocation: str
    given: Given
    here: Given

    def made(self, run: Run, path: Path, name: str) -> Trial | SetAside:
        given = self.given if run.values.get("accelerator.name") else self.here
        return complete(replace(run, key=f"{run.key} of {self.invocation}"), path, name, given)


def read_log(path: Path, format: str | None, ended: Ended, reading: Reading) -> list[Outcome] | SetAside:
    """The trials that the output tells of, in order; a :class:`SetAside` with the reason where there is none.

    Where several formats understand it, that which yields a measured trial counts, then any trial.
    """
    formats = [format] if format else LOGS
    readers = {name: importer(name)().read for name in formats}
    understood = {
        name: found for name, read in readers.items() if (found := outcomes(path, name, read, ended, reading))
    }
    best = _worth(_measured, understood) or _worth(_trials, understood)
    if len(best) > 1:
        return SetAside(str(path), None, f"{' and '.join(best)} understand its output; name one by --format")
    if best:
        return next(iter(best.values()))
    if not understood and ended.code and not ended.by_hand:
        return _without_steps(path, reading)
    asides = [each for found in understood.values() for each in found if isinstance(each, SetAside)]
    return asides[-1] if asides else SetAside(str(path), None, _nobodys(path, formats))


def _nobodys(path: Path, formats: Sequence[str]) -> str:
    said = f"no importer understands its output ({', '.join(formats)})"
    quiet = any("deepspeed" in line.lower() for _, line in numbered(path))  # 0.19 is, by default
    return f'{said}; DeepSpeed needs "log_level": "info" in its configuration' if quiet else said


def _worth(
    count: Callable[[Found], list[Outcome]], understood: Mapping[str, Found]
) -> dict[str, list[Outcome]]:
    return {name: trials for name, found in understood.items() if (trials := count(found))}


def outcomes(path: Path, name: str, read: Read, ended: Ended, reading: Reading) -> Found:
    """What one importer makes of it; empty when it is not of the format."""
    try:
        found = list(read(path))
    except InputError:
        return []
    runs = [each for each in found if isinstance(each, Run)]
    if runs:
        found[found.index(runs[-1])] = _judged(runs[-1], path, ended)
    return [_outcome(each, path, name, reading) for each in found]


def _outcome(found: Run | SetAside, path: Path, name: str, reading: Reading) -> Outcome | SetAside:
    if isinstance(found, SetAside):
        return found
    trial = reading.made(found, path, name)
    return trial if isinstance(trial, SetAside) else (found, trial)


def _judged(run: Run, path: Path, ended: Ended) -> Run | SetAside:
    """The run with its end. What was measured before somebody stopped it stands; an exit code of 0 outweighs
    an exception in the output, which came too late or was caught."""
    stopped = f"stopped by {ended.stopped_by.name}" if ended.code and ended.stopped_by else None
    status, measured = run.values.get("status", Status.OK), any(map(run.values.get, MEASURED))
    told: dict[str, Any] = {}
    if ended.code == 0 or stopped:
        if not measured and ended.by_hand:
            return SetAside(str(path), run.line, f"{stopped} before enough was measured")
        if measured and status in (Status.OK, Status.CRASH):
            told = {"status": str(Status.OK), "cause": stopped}
    elif status == Status.OK:
        told = {"status": str(Status.CRASH), "cause": f"exits with return code = {ended.code}"}
    return replace(run, values=run.values | told)


def _without_steps(path: Path, reading: Reading) -> list[Outcome] | SetAside:
    """A command that failed, by its last words; a trial where constants tell workload and knobs."""
    failures = Failures()
    for _, line in numbered(path):
        failures.read(line)
    assert failures.found is not None  # the log ends with the exit code
    values = {"status": str(failures.found.status), "cause": failures.found.cause}
    found = _outcome(Run(None, "no steps", {"framework": "custom"} | values), path, "custom", reading)
    return found if isinstance(found, SetAside) else [found]


def _measured(outcomes: Found) -> list[Outcome]:
    """The trials, if one of them measured something."""
    trials = _trials(outcomes)
    return trials if any(trial.ok for _, trial in trials) else []


def _trials(outcomes: Found) -> list[Outcome]:
    return [each for each in outcomes if not isinstance(each, SetAside)]
