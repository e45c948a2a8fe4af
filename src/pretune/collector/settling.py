"""From a command's output to trials in a store, whoever is left to do it: ``pretune record`` or its guard."""

from __future__ import annotations

import shutil
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pretune.collector.keep import keep
from pretune.collector.passthrough import Ended
from pretune.collector.reading import Reading, read_log
from pretune.collector.software import versions
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given
from pretune.datasets.platform import Platform, StatedPlatform
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial
from pretune.errors import PretuneError

_PATHS = ("folder", "log", "notes")


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

    def line(self, store: TrialStore) -> str:
        """In words for a person."""
        if self.own:
            return f"the command recorded {', '.join(self.own)} itself in {store.root}"
        trials = f"recorded {', '.join(map(_outcome, self.trials))} in {store.root}" if self.trials else None
        if self.reason is None:
            return str(trials)
        return f"{trials or 'nothing is recorded'}: {self.reason}; its output is kept in {self.log}"


def _outcome(trial: Trial) -> str:
    outcome = f"{trial.tokens_per_s:,.0f} tokens/s" if trial.ok else f"{trial.status} ({trial.cause})"
    return f"{trial.trial_id}: {outcome}"


@dataclass(frozen=True)
class Settling:
    """What is known of a command when it begins. ``folder`` is its own, ``log`` keeps its output there or
    where the user wants it. ``invocation`` tells it from all others, so that its trials are stored once."""

    folder: Path
    log: Path
    notes: Path  # where the command's own recorders note what they stored
    store: TrialStore
    given: Given
    format: str | None
    began: datetime
    began_s: float  # of the monotonic clock, which is the same in every process of a machine
    kills: int  # that the kernel had counted for memory
    invocation: str = field(default_factory=lambda: uuid.uuid4().hex)

    def sheet(self) -> dict[str, Any]:
        """Itself as JSON."""
        platform = self.given.platform and self.given.platform.model_dump(mode="json")
        return {
            **vars(self),
            **{name: str(getattr(self, name)) for name in _PATHS},
            "store": str(self.store.root),
            "given": {"platform": platform, "constants": self.given.constants},
            "began": self.began.isoformat(),
        }

    @classmethod
    def of(cls, sheet: dict[str, Any]) -> Self:
        """What :meth:`sheet` told."""
        platform, constants = sheet["given"]["platform"], sheet["given"]["constants"]
        given = Given(platform and StatedPlatform.model_validate(platform), constants)
        paths = {name: Path(sheet[name]) for name in _PATHS}
        began = datetime.fromisoformat(sheet["began"])
        return cls(**sheet | paths | {"store": TrialStore(sheet["store"]), "given": given, "began": began})

    def settle(
        self,
        ended: Ended,
        here: Callable[[], Platform],
        beside: Callable[[Run, Trial], dict[str, Any]],
        trouble: str | None = None,
    ) -> Recorded:
        """Read the output, and store what it tells, unless the command recorded itself.

        ``here``: the platform that was seen. ``beside``: what the output does not tell. ``trouble``: why not
        all of the output is there. What keeps it from being recorded is ``reason``.
        """
        recorded = Recorded(ended.code)
        try:
            written = self.notes.read_text(encoding="utf-8").split() if self.notes.exists() else []
            recorded.own = [trial_id for trial_id in written if trial_id in self.store]
            if trouble and not recorded.own:
                recorded.reason = f"its output could not be kept ({trouble})"
            elif not recorded.own:
                self._store(recorded, ended, here, beside)
        except Exception as trouble:  # the command ran: its exit code passes whatever is wrong here
            recorded.reason = str(trouble) if isinstance(trouble, PretuneError) else repr(trouble)
        if recorded.reason or self.log.parent != self.folder:
            recorded.log = self.log
        if recorded.log is None or self.log.parent != self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        return recorded

    def _store(
        self,
        recorded: Recorded,
        ended: Ended,
        here: Callable[[], Platform],
        beside: Callable[[Run, Trial], dict[str, Any]],
    ) -> None:
        seen = Given(self.given.platform or here(), self.given.constants)
        found = read_log(self.log, self.format, ended, Reading(self.invocation, self.given, seen))
        if isinstance(found, SetAside):
            recorded.reason = found.reason
            return
        for run, trial in found:
            made = trial.model_copy(update=beside(run, trial))
            keep(made, self.store)
            recorded.trials.append(made)


def untold(
    trial: Trial, began: datetime, wall_s: float, counters: dict[str, float], missing: dict[str, str]
) -> dict[str, Any]:
    """What a log does not tell of its trial."""
    here = {name: version for name, version in versions().items() if name in ("kernel", "pretune")}
    return {
        "purpose": "history",
        "created_at": began,
        "wall_s": wall_s,
        "hosts": trial.hosts or [socket.gethostname()],
        "software": here | trial.software,
        "counters": counters | trial.counters,
        "missing": missing | trial.missing,
    }


def last_words(ended: Ended, kills: int) -> str | None:
    """How it ended, in words of Slurm and of DeepSpeed's launcher, which importers know; None where it ended
    well, or was stopped by hand. ``kills``: of the kernel, for memory, meanwhile."""
    if ended.code == 0 or ended.by_hand:
        return None
    killed = f"pretune record: Detected {kills} oom_kill event(s)\n" if kills > 0 else ""
    return f"{killed}pretune record: the command exits with return code = {ended.code}"
