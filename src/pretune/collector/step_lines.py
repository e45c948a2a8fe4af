"""The steps of any script, found in its output by a pattern, timed by its own words or by our clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.lines import numbered, positive, real
from pretune.datasets.importers.runlog import Failures, Record, RunLog
from pretune.datasets.trial import Measure
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
        for steps in kinds.values():
            steps.settle()
        usual = max(kinds.values(), key=lambda each: each.run.records)
        yield usual.run.finish(path, "steps") or SetAside(str(path), None, "prints one step alone")


class Enough:
    """Told the lines of a script that runs, whether it has printed all that its trial measures: the longest
    warm-up, and then either as many steps as the measure has at most, or the fewest that took its time."""

    def __init__(self, pattern: str | None, measure: Measure) -> None:
        self.pattern, self.measure = re.compile(pattern or USUAL), measure
        self.first: int | None = None
        self.steps = 0  # after the first
        self.warm_s: float | None = None

    def told(self, lines: str, now_s: float) -> bool:
        """``lines``: what came since it was told before."""
        for match in filter(None, map(self.pattern.search, lines.splitlines())):
            said = match.groupdict().get("step")
            number = int(said) if said else (self.first or 0) + self.steps + 1
            self.first = number if self.first is None else self.first
            self.steps = max(self.steps, number - self.first)
        windows = self.steps - self.measure.max_warmup_windows
        if windows >= 0 and self.warm_s is None:
            self.warm_s = now_s
        if self.warm_s is None or windows < self.measure.min_windows:
            return False
        return windows >= self.measure.max_windows or now_s - self.warm_s >= self.measure.max_seconds


@dataclass(frozen=True)
class _Mark:
    """A step's line: its number in the log, and when it had come."""

    step: int
    line: int
    came_s: float | None


class _Steps:
    """The steps that lines of one kind tell."""

    def __init__(self, line: int, failures: Failures) -> None:
        self.run = RunLog(line, {})
        self.run.failures = failures
        self.timed: _Mark | None = None  # up to here time was counted
        self.last: _Mark | None = None

    def add(self, number: int, match: re.Match[str], came_s: float | None) -> None:
        said, before = match.groupdict(), self.last.step if self.last else None
        step = int(said["step"]) if said.get("step") else (before or 0) + 1
        if before is not None and step <= before:
            return
        self.run.loss(real(said.get("loss") or ""))
        if self.last and self.last.came_s != came_s:  # lines that came in one piece count as its last one
            self.settle()
        self.last = _Mark(step, number, came_s)
        if seconds := _stated(said):
            self._record(seconds, 1 if before is None else step - before)
            self.timed = self.last

    def settle(self) -> None:
        """Count the time up to the last line, unless it was stated."""
        before, now = self.timed, self.last
        if now is None or now is before:
            return
        self.timed = now
        if before and before.came_s is not None and now.came_s is not None:
            windows = now.step - before.step
            self._record((now.came_s - before.came_s) / windows, windows)

    def _record(self, seconds: float, windows: int) -> None:
        assert self.last
        self.run.at = self.last.line
        self.run.record(
            Record(seconds, windows), f"step {self.last.step} at line {self.last.line}: {seconds}"
        )


def _stated(said: dict[str, str | None]) -> float | None:
    """Seconds of one step, by the words of its line."""
    if milliseconds := positive(said.get("milliseconds") or ""):
        return milliseconds / 1000
    return positive(said.get("seconds") or "")
