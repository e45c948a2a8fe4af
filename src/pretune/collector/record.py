"""A command becomes a trial without a line in its script: its output is read, its processes are counted."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretune.collector import guard
from pretune.collector.beside import Beside
from pretune.collector.counters.slices import Slices
from pretune.collector.keep import NOTES, keep
from pretune.collector.outside import Outside, told_devices
from pretune.collector.passthrough import Command, Ended
from pretune.collector.process import oom_kills
from pretune.collector.reading import Reading, read_log
from pretune.collector.software import versions
from pretune.collector.timed_log import TimedLog
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial
from pretune.errors import PretuneError

INSIDE = "only the training's own process can read it: record it there, with TrialRecorder"
UNTIMED = "the output does not tell when its measured steps ran: counters are of the whole command"


@dataclass
class Recorded:
    """What became of a command. ``code``: its exit code, as a shell gives it. ``own``: ids of trials that it
    recorded itself, which are then all. ``reason``: why there are no (more) trials. ``log``: where its output
    is kept."""

    code: int
    trials: list[Trial] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    reason: str | None = None
    log: Path | None = None


def record(
    words: Sequence[str], store: TrialStore, given: Given, format: str | None = None, log: Path | None = None
) -> Recorded:
    """Run a command; what its output tells becomes trials of ``store``, of which the last one has its end.

    Nothing of the command changes: output, signals and exit code pass (:mod:`.passthrough`). ``format`` is
    found among those of logs unless given. ``log`` keeps the output; without it, it is kept only when there
    is no trial. Raises :class:`InputError` for what is wrong before the command begins, and :class:`OSError`
    when it cannot be started; after that, whatever keeps pretune from recording is ``reason``.
    """
    if given.platform is None:
        told_devices()
    folder = Path(tempfile.mkdtemp(prefix="pretune-record-"))
    recording = Recording(folder, TimedLog(log or folder / "output.log"))
    try:
        recording.start(words)
    except OSError:
        recording.log.end(None)
        recording.log.path.unlink()
        shutil.rmtree(folder)
        raise
    recorded = Recorded(recording.follow())
    try:
        recording.settle(recorded, store, given, format)
    except Exception as trouble:  # the command ran: its exit code passes whatever is wrong here
        recorded.reason = str(trouble) if isinstance(trouble, PretuneError) else repr(trouble)
    if log or recorded.reason:
        recorded.log = recording.log.path
    if log or not recorded.reason:
        shutil.rmtree(folder)
    return recorded


class Recording:
    """One command while it runs, and what it left."""

    def __init__(self, folder: Path, log: TimedLog) -> None:
        self.log, self.notes = log, folder / "recorded"
        self.began, self.began_s = datetime.now(UTC), time.monotonic()
        self.kills = oom_kills()

    def start(
        self, words: Sequence[str], environment: Mapping[str, str] = os.environ, folder: str | None = None
    ) -> None:
        """Run it in ``folder``, or here. Raises :class:`OSError` when it cannot be started."""
        self.command = Command(words, {**environment, NOTES: str(self.notes)}, folder)

    def follow(self, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Until it ends; its exit code. ``meanwhile`` is called some times a second."""
        pid = self.command.process.pid
        beside = Beside(guard.MODULE, {"pid": pid, "log": str(self.log.path)})
        self.outside = Outside(pid)
        self.slices = Slices(self.outside.trainer)
        self.ended = self.command.follow(self.log, meanwhile)
        self.slices.stop()
        beside.dismiss()
        self.ended_s = time.monotonic()
        self.log.end(last_words(self.ended, oom_kills() - self.kills))
        return self.ended.code

    def settle(self, recorded: Recorded, store: TrialStore, given: Given, format: str | None) -> None:
        """Read the output, and store what it tells, unless the command recorded itself."""
        written = self.notes.read_text(encoding="utf-8").split() if self.notes.exists() else []
        recorded.own = [trial_id for trial_id in written if trial_id in store]
        if recorded.own:
            return
        if self.log.trouble:
            recorded.reason = f"its output could not be kept ({self.log.trouble})"
            return
        outcome = read_log(self.log.path, format, self.ended, self._reading(given))
        if isinstance(outcome, SetAside):
            recorded.reason = outcome.reason
            return
        for run, trial in outcome:
            made = trial.model_copy(update=self.beside(run, trial))
            keep(made, store)
            recorded.trials.append(made)

    def _reading(self, given: Given) -> Reading:
        platform = given.platform or self.outside.platform()
        named = Given(given.platform, given.constants)
        return Reading(uuid.uuid4().hex, named, Given(platform, given.constants))

    def beside(self, run: Run, trial: Trial) -> dict[str, Any]:
        """What the log does not tell: times, place and counters."""
        counters, missing = self._counted(run)
        here = {name: version for name, version in versions().items() if name in ("kernel", "pretune")}
        return {
            "purpose": "history",
            "created_at": self.began,
            "wall_s": self.ended_s - self.began_s,
            "hosts": trial.hosts or [socket.gethostname()],
            "software": here | trial.software,
            "counters": counters | trial.counters,
            "missing": missing | trial.missing,
        }

    def _counted(self, run: Run) -> tuple[dict[str, float], dict[str, str]]:
        """Counters over the measured steps, where their lines came when the steps ended; else over all."""
        missing = {**self.slices.missing, "torch_memory": INSIDE, "deepspeed_comm": INSIDE}
        span = run.span
        begin_s, end_s = (self.log.came_s(span.after), self.log.came_s(span.to)) if span else (None, None)
        if span and begin_s and end_s and end_s - begin_s > span.seconds / 2:  # else they waited in a buffer
            return self.slices.between(begin_s, end_s).by_name(span.windows), missing
        return self.slices.between(self.began_s, self.ended_s).by_name(0), missing | {"steps": UNTIMED}


def last_words(ended: Ended, kills: int) -> str | None:
    """How it ended, in words of Slurm and of DeepSpeed's launcher, which importers know; None where it ended
    well, or was stopped by hand."""
    if ended.code == 0 or ended.by_hand:
        return None
    killed = f"pretune record: Detected {kills} oom_kill event(s)\n" if kills > 0 else ""
    return f"{killed}pretune record: the command exits with return code = {ended.code}"
