"""Trials, from proposal to record, so that a kill at any instant neither loses nor repeats one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.collector.evidence import read_json, write_json
from pretune.collector.launchers.base import Launcher
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Status, Trial, TrialSpec
from pretune.errors import LaunchError
from pretune.mlflow_config.base import Tracker
from pretune.tuner.budget import Spending
from pretune.tuner.tuner import Predicted

POLL_S = 0.1
PAUSE_S = 10.0  # before a launcher that failed is tried again
LARGEST_LOGGED_BYTES = 10_000_000


@dataclass
class Row:
    """A trial as it is shown while the session runs; ``trial`` is None until it ended."""

    spec: TrialSpec
    predicted: Predicted | None
    began: float
    trial: Trial | None = None


class Watcher:
    """Told what happens, to show it. Every method may be left as it is."""

    def expect(self, trials: int | None, seconds: float | None = None) -> None:
        """About so many trials, or seconds, are still to come (None: not known)."""

    def spent(self, text: str) -> None:
        """What was spent of the budget so far, in words."""

    def begun(self, row: Row) -> None:
        """A trial is about to start."""

    def waiting(self, row: Row) -> None:
        """The trial still runs; called at every poll."""

    def ended(self, row: Row) -> None:
        """The trial is stored."""

    def note(self, text: str) -> None:
        """One line for the user."""
        print(text, file=sys.stderr)


Steps = Generator[None, None, Trial | None]  # yields while it waits; returns the trial


@dataclass(frozen=True)
class Work:
    """A trial to run: ``propose`` says what, unless it was begun before; ``tell`` whoever learns of it.

    ``deadline`` (monotonic): when it is killed and leaves no record. ``hopeless``: whether a trial of these
    window times can be stopped, as it will not be the best.
    """

    trial_id: str
    propose: Callable[[], tuple[TrialSpec, Predicted | None]]
    tell: Callable[[Trial], None] = lambda _: None
    deadline: float = math.inf
    hopeless: Callable[[Sequence[float]], bool] = lambda _: False


class TrialRunner:
    """Runs trials, one at a time on each of ``launchers``; the store is the only state.

    The order of a trial: its sheet ``runs/<id>/spec.json`` is durable before it is submitted, the record
    is in the store before anyone learns of it. Started again, a stored trial is only told; one with a sheet
    is recovered where it had ended, else run again from the same sheet.

    A trial that a host's failure interrupted says nothing of its configuration: it is stored, and run again
    as ``<id>.2`` and so on, ``retries`` times in all runs of the session. Where a launcher cannot start a
    trial at all, it is tried ``retries`` times anew, after a pause.
    """

    def __init__(
        self,
        launchers: Sequence[Launcher],
        store: TrialStore,
        runs: Path,
        tracker: Tracker,
        watcher: Watcher,
        retries: int = 0,
    ) -> None:
        self.launchers, self.store, self.runs = launchers, store, runs
        self.tracker, self.watcher, self.retries = tracker, watcher, retries
        self.stored = {trial.trial_id: trial for trial in store.trials()}
        self.spending: Spending | None = None  # told now and then while a trial runs

    def run(self, work: Work) -> Trial | None:
        """The trial, run now or before; None when its deadline passed first."""
        ended: list[Trial | None] = []
        self.keep_busy(iter([work]), ended.append)
        return ended[0]

    def keep_busy(
        self, works: Iterator[Work], ended: Callable[[Trial | None], None] = lambda _: None
    ) -> None:
        """Run all of them in order, on every launcher one at a time; the next is taken when one is free."""
        running: dict[int, Steps] = {}
        try:
            while True:
                for at, launcher in enumerate(self.launchers):
                    while at not in running and (work := next(works, None)) is not None:
                        running[at] = self._steps(work, launcher)
                        self._advance(running, at, ended)
                if not running:
                    return
                time.sleep(POLL_S)
                for at in list(running):
                    self._advance(running, at, ended)
        finally:
            with ExitStack() as stack:  # Ctrl-C, or a host that is gone: nothing keeps running
                for steps in running.values():
                    stack.callback(steps.close)

    @staticmethod
    def _advance(running: dict[int, Steps], at: int, ended: Callable[[Trial | None], None]) -> None:
        try:
            next(running[at])
        except StopIteration as end:
            del running[at]
            ended(end.value)

    def _steps(self, work: Work, launcher: Launcher) -> Steps:
        attempt, number = work, 1
        while True:
            trial = yield from self._attempt(attempt, launcher)
            if trial is None or trial.status is not Status.INTERRUPTED or number > self.retries:
                break
            number += 1
            attempt = again(work, trial, f"{work.trial_id}.{number}")
        if trial is not None:
            work.tell(trial)
        return trial

    def _attempt(self, work: Work, launcher: Launcher) -> Steps:
        trial = self.stored.get(work.trial_id)
        if trial is None and time.monotonic() >= work.deadline:
            return None
        row = self._row(work.trial_id, trial, work.propose)
        if trial is None:
            self.watcher.begun(row)
            trial = yield from self._recovered_or_run(row, work, launcher)
            if trial is None:
                return None
            self.store.append(trial)
            self.stored[work.trial_id] = trial
        self.tracker.trial_ended(trial, logged_files(self.runs / work.trial_id))
        row.trial = trial
        self.watcher.ended(row)
        return trial

    def _row(
        self,
        trial_id: str,
        trial: Trial | None,
        propose: Callable[[], tuple[TrialSpec, Predicted | None]],
    ) -> Row:
        folder = self.runs / trial_id
        sheet = read_json(folder / "spec.json")
        if trial is not None or sheet is not None:
            spec = trial.spec if trial else TrialSpec.from_mapping(sheet, str(folder / "spec.json"))
            return Row(spec, read_predicted(folder), time.monotonic())
        spec, predicted = propose()
        folder.mkdir(parents=True, exist_ok=True)
        if predicted:
            write_json(folder / "predicted.json", predicted.asdict())
        write_json(folder / "spec.json", spec.model_dump(mode="json"))
        return Row(spec, predicted, time.monotonic())

    def _recovered_or_run(self, row: Row, work: Work, launcher: Launcher) -> Steps:
        self.tracker.trial_begun(row.spec)
        if (trial := launcher.recover(row.spec)) is not None:
            return trial
        for left in reversed(range(self.retries + 1)):
            try:
                return (yield from self._launched(row, work, launcher))
            except LaunchError as error:
                if not left:
                    raise
                self.watcher.note(f"warning: {error}; trying again in {PAUSE_S:g} s, {left} times at most")
                launcher.close()  # what it holds may be what is broken
            until = time.monotonic() + PAUSE_S
            while time.monotonic() < until:
                yield
        raise AssertionError("the last attempt returns or raises")

    def _launched(self, row: Row, work: Work, launcher: Launcher) -> Steps:
        handle, trial = launcher.submit(row.spec), None
        try:
            while (trial := launcher.poll(handle)) is None and time.monotonic() < work.deadline:
                self.watcher.waiting(row)
                if self.spending:
                    self.spending.tick()
                if work.hopeless(measured_so_far(handle.folder)):
                    launcher.stop(handle)
                yield
        finally:
            if trial is None:  # out of time, closed, or failed
                launcher.kill(handle)
        return trial


def again(work: Work, trial: Trial, trial_id: str) -> Work:
    """The same trial once more, under another id."""
    spec = trial.spec.model_copy(update={"trial_id": trial_id})
    return replace(work, trial_id=trial_id, propose=lambda: (spec, None))


def measured_so_far(folder: Path) -> list[float]:
    """Seconds of each window that a running trial has measured."""
    return (read_json(folder / "progress.json") or {}).get("window_times_s") or []


def read_predicted(folder: Path) -> Predicted | None:
    """What was predicted of the trial in ``folder`` when it was proposed."""
    found = read_json(folder / "predicted.json")
    return Predicted(**found) if found else None


def logged_files(folder: Path) -> list[Path]:
    """The files of a trial that tracking is to keep: sheet, evidence, framework files, small logs."""
    paths = sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
    return [path for path in paths if path.stat().st_size <= LARGEST_LOGGED_BYTES]


class GuardedTracker(Tracker):
    """A tracker that may fail: the first failure is a warning, and the rest of the session is not told."""

    def __init__(self, tracker: Tracker, watcher: Watcher, remedy: str) -> None:
        self._tracker, self._watcher, self._remedy = tracker, watcher, remedy
        self.down = False

    def _tell(self, method: str, *arguments: Any) -> Any:
        if self.down:
            return None
        try:
            return getattr(self._tracker, method)(*arguments)
        except Exception as error:
            self.down = True
            reason = " ".join(str(error).split())[:200]
            self._watcher.note(f"warning: {reason}; the session goes on without tracking. {self._remedy}")
            return None

    def session_begun(self, session_id: str, name: str, params: Mapping[str, Any]) -> str | None:
        run_id: str | None = self._tell("session_begun", session_id, name, params)
        return run_id

    def session_ended(
        self, session_id: str, metrics: Mapping[str, float], files: list[Path], note: str
    ) -> None:
        self._tell("session_ended", session_id, metrics, files, note)

    def trial_begun(self, spec: TrialSpec) -> None:
        self._tell("trial_begun", spec)

    def trial_ended(self, trial: Trial, files: list[Path]) -> None:
        self._tell("trial_ended", trial, files)

    def fit_begun(self, name: str, params: Mapping[str, Any]) -> None:
        self._tell("fit_begun", name, params)

    def fit_ended(self, name: str, metrics: Mapping[str, float], files: list[Path], model: Path) -> None:
        self._tell("fit_ended", name, metrics, files, model)
