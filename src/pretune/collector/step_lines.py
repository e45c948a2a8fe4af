"""The steps of any script, found in its output by a pattern, timed by its own words or by our clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.lines import numbered, positive, real
from pretune.datasets.importers.runlog import Failures, Record, RunLog
from pretune.errors import InputError

# a step's number, then its loss: "iter 7: loss 2.31, time 12ms", "Step 7/100 | Loss: 2.31"
USUAL = (
    r"(?i)(?P<kind>\b(?:iter|iteration|step|global_step))\b[^\w+.-]{1,3}(?P<step>\d+)\b"
    r".*?\bloss['\"]?[^\w+.-]{1,4}(?P<loss>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf\w*))"
)


class StepLines:
    """Reads a log as an importer does; ``pattern`` as in a job's ``step_line``, :data:`USUAL` without.

    ``came_s``: when a line (the first is 1) had come, in seconds of any clock. A step's time is the one that
    its line states; else that which passed since the line of the step before, so that all between them
    counts. Where lines of several kinds fit (an evaluation's too), the most frequent one counts; where
    several ranks print a step, the first.
    """

    def __init__(self, pattern: str | None, came_s: Callable[[int], float | None]) -> None:
        self.pattern, self.came_s = re.compile(pattern or USUAL), came_s

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        """One run. Raises :class:`InputError` where no line fits."""
        failures = Failures()
        kinds: dict[str, _Steps] = {}
        for number, line in numbered(path):
            if match := self.pattern.search(line):
                kind = match.groupdict().get("kind") or ""
                steps = kinds.setdefault(kind, _Steps(number, failures))
                steps.add(number, match, self.came_s(number))
            else:
                failures.read(line)
        if not kinds:
            raise InputError(f"{path}: has no line of a step (of the form {self.pattern.pattern})")
        usual = max(kinds.values(), key=lambda each: each.run.records)
        yield usual.run.finish(path, "steps") or SetAside(str(path), None, "prints one step alone")


class _Steps:
    """The steps that lines of one kind tell."""

    def __init__(self, line: int, failures: Failures) -> None:
        self.run = RunLog(line, {})
        self.run.failures = failures
        self.step: int | None = None
        self.came_s: float | None = None

    def add(self, number: int, match: re.Match[str], came_s: float | None) -> None:
        said = match.groupdict()
        step = int(said["step"]) if said.get("step") else (self.step or 0) + 1
        if self.step is not None and step <= self.step:
            return
        self.run.loss(real(said.get("loss") or ""))
        windows = 1 if self.step is None else step - self.step
        seconds = _stated(said) or self._passed(came_s, windows)
        if seconds == 0:
            return  # it came in one piece with the line before: the next one's time is that of both
        self.run.at, self.step, self.came_s = number, step, came_s
        if seconds:
            self.run.record(Record(seconds, windows), match.string)

    def _passed(self, came_s: float | None, windows: int) -> float | None:
        if came_s is None or self.came_s is None:
            return None
        return (came_s - self.came_s) / windows


def _stated(said: dict[str, str | None]) -> float | None:
    """Seconds of one step, by the words of its line."""
    if milliseconds := positive(said.get("milliseconds") or ""):
        return milliseconds / 1000
    return positive(said.get("seconds") or "")
