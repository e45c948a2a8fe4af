"""One trial, from proposal to record, so that a kill at any instant neither loses nor repeats it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.collector.evidence import read_json, write_json
from pretune.collector.launchers.base import Launcher
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial, TrialSpec
from pretune.mlflow_config.base import Tracker
from pretune.tuner.budget import Spending
from pretune.tuner.tuner import Predicted

POLL_S = 0.1
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


class TrialRunner:
    """Runs trials one after the other; the store is the only state.

    The order of a trial: its sheet ``runs/<id>/spec.json`` is durable before it is
    submitted, the record is in the store before anyone learns of it, the tracker comes last.
    Started again, a stored trial is only told; one with a sheet is recovered where it had
    ended, else run again from the same sheet.
    """

    def __init__(
        self, launcher: Launcher, store: TrialStore, runs: Path, tracker: Tracker, watcher: Watcher
    ) -> None:
        self.launcher, self.store, self.runs = launcher, store, runs
        self.tracker, self.watcher = tracker, watcher
        self.stored = {trial.trial_id: trial for trial in store.trials()}
        self.spending: Spending | None = None  # told now and then while a trial runs

    def run(
        self,
        trial_id: str,
        propose: Callable[[], tuple[TrialSpec, Predicted | None]],
        tell: Callable[[Trial], None] = lambda _: None,
        deadline: float = math.inf,
    ) -> Trial | None:
        """The trial of that id, run now or before; None when ``deadline`` (monotonic) passed first."""
        trial = self.stored.get(trial_id)
        if trial is None and time.monotonic() >= deadline:
            return None
        row = self._row(trial_id, trial, propose)
        if trial is None:
            self.watcher.begun(row)
            trial = self._recovered_or_run(row, deadline)
            if trial is None:
                return None
            self.store.append(trial)
            self.stored[trial_id] = trial
        tell(trial)
        self.tracker.trial_ended(trial, logged_files(self.runs / trial_id))
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

    def _recovered_or_run(self, row: Row, deadline: float) -> Trial | None:
        self.tracker.trial_begun(row.spec)
        return self.launcher.recover(row.spec) or self._launched(row, deadline)

    def _launched(self, row: Row, deadline: float) -> Trial | None:
        handle = self.launcher.submit(row.spec)
        trial = None
        try:
            while (trial := self.launcher.poll(handle)) is None and time.monotonic() < deadline:
                self.watcher.waiting(row)
                if self.spending:
                    self.spending.tick()
                time.sleep(POLL_S)
        finally:
            if trial is None:  # out of time, Ctrl-C, or a host that is gone: nothing keeps running
                self.launcher.kill(handle)
        return trial


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
