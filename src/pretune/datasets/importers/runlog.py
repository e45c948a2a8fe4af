"""What a training log says of one run, gathered line by line: its windows, its loss, its memory, its end."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pretune.datasets.importers.base import Run, SetAside, Span, digest
from pretune.datasets.importers.lines import numbered, unprefixed
from pretune.datasets.trial import Status
from pretune.errors import InputError

KEPT = 1000  # records of which the times are kept; of later ones the sum alone
MIN_WARMUP, MAX_WARMUP = 2, 8  # windows, as in Measure
SLOW = 1.2  # of the median: a record that is slower is still warming up

_OOM = re.compile(
    r"((?:torch\.)?(?:cuda\.|hip\.)?OutOfMemoryError: .*|RuntimeError: (?:CUDA|HIP) out of memory.*"
    r"|MemoryError\b.*|.*DefaultCPUAllocator: can't allocate memory.*|.*Detected \d+ oom[-_]kill event.*)"
)
_TIMEOUT = re.compile(r".*(Watchdog caught collective operation timeout.*)")
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b(?::.*)?)$")
_EXIT = re.compile(r".*(exits with return code = -?[1-9]\d*)")
# what a log states of a run before any step: it holds for the next run in the file too
_STATED = ("model.", "workload.", "platform.", "accelerator.", "knob.", "software.")
_GRAVITY = {Status.OOM: 3, Status.TIMEOUT: 2, Status.DIVERGED: 1, Status.CRASH: 0}


@dataclass(frozen=True)
class Record:
    """One line of progress: ``windows`` optimizer steps that took ``seconds`` each.

    ``paused``: an evaluation or a checkpoint fell into them. ``rates``: what else it states per second, by
    column of the store, to be averaged over the same windows.
    """

    seconds: float
    windows: int = 1
    paused: bool = False
    rates: dict[str, float] = field(default_factory=dict)


class Steady:
    """The windows of a run after its warm-up, without those in which it paused.

    Warm-up is the first record, and as many more as make ``MIN_WARMUP`` windows; then those among the first
    ``MAX_WARMUP`` windows that are slower than ``SLOW`` times the median (graph capture, autotuning). When
    every record has a pause in it, pauses are all that can be had, and count. ``warmup`` False: whoever wrote
    the log warmed up before it; the first record is left out only where it alone is slow.
    """

    def __init__(self, warmup: bool = True) -> None:
        self.warmup = warmup
        self.kept: list[Record] = []
        self.lines: list[int] = []  # of the kept records, and of the last one
        self.later: list[float] = [0.0, 0.0]  # windows, seconds

    def add(self, record: Record, line: int = 0) -> None:
        """``line``: on which it stands, where that is asked for by ``span``."""
        self.lines[KEPT:] = [line]
        if len(self.kept) < KEPT:
            self.kept.append(record)
        elif not record.paused:
            self.later[0] += record.windows
            self.later[1] += record.windows * record.seconds

    def values(self) -> dict[str, Any]:
        """``step_time_s``, ``window_times_s`` (of a record each), ``warmup_windows`` and the rates; or {}."""
        first = self._warmup_records() if self.warmup else self._slow_start()
        used = [r for r in self.kept[first:] if not r.paused] or self.kept[first:]
        windows = sum(record.windows for record in used)
        if not windows:
            return {}
        seconds = sum(record.windows * record.seconds for record in used)
        values: dict[str, Any] = {
            "step_time_s": (seconds + self.later[1]) / (windows + self.later[0]),
            "window_times_s": [record.seconds for record in used],
            "warmup_windows": sum(record.windows for record in self.kept[:first]),
        }
        for column in sorted({name for record in used for name in record.rates}):
            stated = [r for r in used if column in r.rates]
            weights = [record.windows * record.seconds for record in stated]
            total = sum(weight * r.rates[column] for weight, r in zip(weights, stated, strict=True))
            values[column] = total / sum(weights)
        return values

    def span(self) -> Span | None:
        """Where the measured records stand, paused ones among them; None where no record was before them."""
        first = self._warmup_records() if self.warmup else self._slow_start()
        used = self.kept[first:]
        if not first or not used:
            return None
        windows = sum(record.windows for record in used) + self.later[0]
        seconds = sum(record.windows * record.seconds for record in used) + self.later[1]
        return Span(self.lines[first - 1], self.lines[-1], int(windows), seconds)

    def _slow_start(self) -> int:
        times = sorted(record.seconds for record in self.kept)
        return int(len(times) > 2 and self.kept[0].seconds > SLOW * times[len(times) // 2])

    def _warmup_records(self) -> int:
        times = sorted(record.seconds for record in self.kept if not record.paused)
        limit = SLOW * times[len(times) // 2] if times else math.inf
        windows = 0
        for index, record in enumerate(islice(self.kept, MAX_WARMUP + 1)):
            slow = record.seconds > limit and windows + record.windows <= MAX_WARMUP
            if windows >= MIN_WARMUP and not slow:
                return index
            windows += record.windows
        return min(len(self.kept), MAX_WARMUP)


@dataclass
class Failure:
    """How a log says that its run ended badly."""

    status: Status
    cause: str


class Failures:
    """Reads the end of a run out of its log: an exception, a watchdog, an exit code. Progress afterwards
    means that the run went on."""

    def __init__(self) -> None:
        self.found: Failure | None = None
        self._traceback = False

    def read(self, line: str) -> None:
        text = unprefixed(line)
        text = text[1:] if text.startswith(" ") and not text.startswith("  ") else text
        if text.startswith("Traceback (most recent call last)"):
            self._traceback = True
        elif match := _OOM.match(text):
            self._note(Status.OOM, match[1])
        elif match := _TIMEOUT.match(text):
            self._note(Status.TIMEOUT, match[1])
        elif self._traceback and (match := _EXCEPTION.match(text)):
            self._traceback = False
            self._note(Status.CRASH, match[1])
        elif match := _EXIT.match(text):
            self._note(Status.CRASH, match[1])

    def _note(self, status: Status, cause: str) -> None:
        if self.found is None or _GRAVITY[status] > _GRAVITY[self.found.status]:
            self.found = Failure(status, cause.strip()[:300])

    def went_on(self) -> None:
        self.found = None
        self._traceback = False


class RunLog:
    """One run as its log tells it. ``values``: what it states by column of the store."""

    def __init__(self, line: int, values: dict[str, Any], warmup: bool = True) -> None:
        self.line = self.at = line  # where it begins; where its reader is
        self.values = dict(values)
        self.steady = Steady(warmup)
        self.failures = Failures()
        self.notes: list[str] = []
        self.records = 0
        self._first = ""

    @property
    def stated(self) -> dict[str, Any]:
        """The values that were not measured."""
        return {column: value for column, value in self.values.items() if column.startswith(_STATED)}

    def record(self, record: Record, text: str) -> None:
        """``text``: the line itself; the first one tells this run from all others."""
        self._first = self._first or unprefixed(text).strip()
        self.records += 1
        self.steady.add(record, self.at)
        self.failures.went_on()

    def loss(self, value: float | None) -> None:
        if value is None:
            return
        self.values.setdefault("loss_first", value)
        self.values["loss_last"] = value

    def peak(self, column: str, count: float | None) -> None:
        if count is not None and math.isfinite(count) and count >= 0:
            self.values[column] = max(int(count), self.values.get(column, 0))

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 20:
            self.notes.append(text)

    def finish(self, path: Path, name: str) -> Run | SetAside | None:
        """The run; what is set aside when nothing was measured; None when the log says nothing of it."""
        failure = self._failure()
        measured = self.steady.values()
        if failure is None and not measured:
            if not self.records and not self.notes:
                return None
            warmup = f"logs only its warm-up ({self.records} lines of progress); let it run for longer"
            reason = warmup if self.records else self.notes[0]
            return SetAside(str(path), self.line, reason)
        values = {**self.values, **measured, "status": str(failure.status if failure else Status.OK)}
        if failure:
            values["cause"] = failure.cause
            values = {
                column: value for column, value in values.items() if not column.startswith("tokens_per_s")
            }
        return Run(self.line, f"{name}-{self._digest(path)}", values, self.notes, self.steady.span())

    def _failure(self) -> Failure | None:
        last = self.values.get("loss_last")
        if last is not None and not math.isfinite(last):
            del self.values["loss_last"]
            if not math.isfinite(self.values["loss_first"]):
                del self.values["loss_first"]
            diverged = Failure(Status.DIVERGED, f"the loss became {last}")
            found = self.failures.found
            return found if found and _GRAVITY[found.status] > _GRAVITY[Status.DIVERGED] else diverged
        return self.failures.found

    def _digest(self, path: Path) -> str:
        """Of its first line of progress, whose figures no two runs share; else of where it stands."""
        stated = json.dumps(self.values, sort_keys=True, default=str)
        told = self._first or f"{path.name}:{self.line}:{stated}"
        return digest(told)


def batch(sequences: int, length: int | None) -> dict[str, int]:
    """The global batch in sequences and, where their length is known, in tokens."""
    tokens = {"workload.global_batch_tokens": sequences * length} if length else {}
    return {"workload.global_batch_sequences": sequences, **tokens}


class LogReader(ABC):
    """The state of a log between two of its lines: the run that is open, and whether the format was met."""

    needs: str  # what a file without is not of the format

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.recognised = False
        self.outcomes = 0
        self.run = RunLog(1, {})

    @abstractmethod
    def read(self, number: int, line: str) -> Iterator[Run | SetAside]:
        """Takes a line in; yields a run that it ends."""

    def runs(self) -> Iterator[Run | SetAside]:
        """All runs of the file; :class:`InputError` when it is not of the format."""
        for number, line in numbered(self.path):
            self.run.at = number
            yield from self.read(number, line)
        if not self.recognised:
            raise InputError(f"{self.path}: is no {self.name} log (it has no {self.needs})")
        yield from self.ended()
        if not self.outcomes:
            yield SetAside(str(self.path), self.run.line, "has no line of progress; let it run for longer")

    def begin(self, number: int, values: dict[str, Any]) -> Iterator[Run | SetAside]:
        """Another run, of which ``values`` are known; what the open one has come to."""
        yield from self.ended()
        self.run = RunLog(number, values)

    def ended(self) -> Iterator[Run | SetAside]:
        """What the run that is open has come to."""
        outcome = self.run.finish(self.path, self.name)
        if outcome is not None and self.recognised:
            self.outcomes += 1
            yield outcome
