"""A command becomes a trial without a line in its script: its output is read, its processes are counted."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretune.collector import guard
from pretune.collector.beside import Beside
from pretune.collector.counters.slices import Slices
from pretune.collector.keep import NOTES
from pretune.collector.outside import Outside, told_devices
from pretune.collector.passthrough import Command
from pretune.collector.process import oom_kills
from pretune.collector.settling import Recorded, Settling, last_words, untold
from pretune.collector.timed_log import TimedLog
from pretune.datasets.importers.base import Run
from pretune.datasets.importers.complete import Given
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial

INSIDE = "only the training's own process can read it: record it there, with TrialRecorder"
UNTIMED = "the output does not tell when its measured steps ran: counters are of the whole command"


def record(
    words: Sequence[str], store: TrialStore, given: Given, format: str | None = None, log: Path | None = None
) -> Recorded:
    """Run a command; what its output tells becomes trials of ``store``, of which the last one has its end.

    Nothing of the command changes: output, signals and exit code pass (:mod:`.passthrough`). ``format`` is
    found among those of logs unless given. ``log`` keeps the output; without it, it is kept only when there
    is no trial. Should this process be killed, its :mod:`.guard` ends the command and records it. Raises
    :class:`InputError` for what is wrong before the command begins, and :class:`OSError` when it cannot be
    started; after that, whatever keeps pretune from recording is ``reason``.
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
    began, began_s, kills = recording.began, recording.began_s, recording.kills
    paths = (folder, recording.log.path, recording.notes)
    settling = Settling(*paths, store, given, format, began, began_s, kills)
    with recording.guarded(settling):
        recording.follow()
        return settling.settle(
            recording.ended, recording.outside.platform, recording.beside, recording.log.trouble
        )


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

    @contextmanager
    def guarded(self, settling: Settling | None = None) -> Iterator[None]:
        """Should this process end in the block, the command is ended too, and settled if it says how."""
        sheet = settling.sheet() if settling else None
        beside = Beside(guard.MODULE, {"pid": self.command.process.pid, "settling": sheet})
        yield
        beside.dismiss()  # not after an exception: nobody follows the command then

    def follow(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Until it has ``ended``. ``meanwhile`` is called some times a second."""
        self.outside = Outside(self.command.process.pid)
        self.slices = Slices(self.outside.trainer)
        self.ended = self.command.follow(self.log, meanwhile)
        self.slices.stop()
        self.ended_s = time.monotonic()
        self.log.end(last_words(self.ended, oom_kills() - self.kills))

    def beside(self, run: Run, trial: Trial) -> dict[str, Any]:
        """What the log does not tell: times, place and counters."""
        counters, missing = self._counted(run)
        return untold(trial, self.began, self.ended_s - self.began_s, counters, missing)

    def _counted(self, run: Run) -> tuple[dict[str, float], dict[str, str]]:
        """Counters over the measured steps, where their lines came when the steps ended; else over all."""
        missing = {**self.slices.missing, "torch_memory": INSIDE, "deepspeed_comm": INSIDE}
        span = run.span
        begin_s, end_s = (self.log.came_s(span.after), self.log.came_s(span.to)) if span else (None, None)
        if span and begin_s and end_s and end_s - begin_s > span.seconds / 2:  # else they waited in a buffer
            return self.slices.between(begin_s, end_s).by_name(span.windows), missing
        return self.slices.between(self.began_s, self.ended_s).by_name(0), missing | {"steps": UNTIMED}
