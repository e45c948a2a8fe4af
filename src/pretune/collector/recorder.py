"""Record a trial from anyone's training loop: one ``with`` and one call per optimizer step."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pretune.collector.device import PeakMemory
from pretune.collector.keep import keep
from pretune.collector.meter import Meter
from pretune.collector.outcome import cause, judge
from pretune.collector.ranks import Ranks
from pretune.collector.sheet import report, stop_asked, trial_here
from pretune.collector.software import versions
from pretune.collector.watcher import LAST_S, Watcher
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.trial import Measure, Status, Trial, TrialSpec
from pretune.datasets.workload import Workload
from pretune.errors import InputError, PretuneError

if TYPE_CHECKING:
    from pretune.datasets.store import TrialStore

Batch = TypeVar("Batch")


class TrialRecorder:
    """Measures the loop inside its ``with`` block and appends one Trial to a store, which every rank sees.

    ::

        with TrialRecorder(workload=workload, platform=platform, knobs=knobs, store="trials") as recorder:
            for batch in recorder.batches(loader):
                loss = train(batch)  # forward, backward, optimizer step
                if not recorder.step(loss=loss):
                    break  # measured; going on is fine too, and costs nothing

    Entered on every rank, after ``torch.distributed`` is set up and before the model is built: memory
    is counted from there. It waits for the device at the ends of warm-up steps, two or three times
    while it measures, and around pauses; it changes nothing else. Rank 0 writes when enough is
    measured; what comes later does not undo it. An exception before that is recorded with its status
    (``oom``, ``diverged``, ``crash``, ...) by the rank that raised first, and goes on; so is an exit with
    another code than 0. To stop by hand says nothing of the configuration, and is no trial. ``trial`` is
    what this rank recorded. A rank that is killed is recorded by a process beside it (:mod:`.watcher`), but
    what it had measured goes with it. ``late``: the model was built before. In a trial that
    ``pretune tune`` started, what it records goes to the tuner, and not to ``store``.
    """

    def __init__(
        self,
        *,
        workload: Workload,
        platform: Platform,
        knobs: Knobs,
        store: TrialStore | str | Path,
        framework: str = "custom",
        measure: Measure | None = None,
        trial_id: str | None = None,
        session_id: str | None = None,
        late: bool = False,
    ) -> None:
        self.spec = TrialSpec(
            trial_id=trial_id or uuid.uuid4().hex,
            session_id=session_id,
            purpose="history",
            workload=workload,
            platform=platform,
            knobs=knobs,
            framework=framework,
            measure=measure or Measure(),
        )
        self.store, self.late = store, late
        self.trial: Trial | None = None
        self._measured = False

    def __enter__(self) -> Self:
        self._began, self._entered_s = datetime.now(UTC), time.perf_counter()
        ranks, devices = Ranks(), self.spec.platform.devices
        self._take_part(ranks)
        if ranks.size != devices:
            raise InputError(
                f"recorder: {ranks.size} ranks are joined, but the platform has {devices} devices; "
                "enter it on every rank, after torch.distributed is set up"
            )
        # one id for all ranks, since any of them may have to write
        self.spec = self.spec.model_copy(update={"trial_id": ranks.gather(self.spec.trial_id)[0]})
        told = report if ranks.rank == 0 else None
        stop = stop_asked if trial_here() else None
        self._meter = Meter(self.spec.measure, ranks, PeakMemory(self.late), told, stop)
        root = str(self.store.root if hasattr(self.store, "root") else self.store)
        vanished = self._made(Status.CRASH, "not ended", self._meter.alone())
        self._watcher = Watcher(vanished, root, ranks.rank)
        return self

    def _take_part(self, ranks: Ranks) -> None:
        """In a tuner's trial its id and its measure count. Every rank must hold the same sheet."""
        sheet = trial_here()
        held = set(ranks.gather(sheet.model_dump_json() if sheet else None))
        if len(held) > 1:
            raise InputError("recorder: the ranks hold different trials' sheets; start them by one command")
        if sheet is not None:
            ours = {name: getattr(sheet, name) for name in ("trial_id", "session_id", "measure")}
            self.spec = self.spec.model_copy(update=ours)

    def batches(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the time spent waiting for them is recorded."""
        return self._meter.batches(source)

    def step(self, tokens: int | None = None, loss: Any = None) -> bool:
        """One optimizer step ended; False once enough is measured.

        ``tokens``: what the whole job trained on in it; the workload's global batch unless given.
        """
        going = self._meter.step(tokens or self.spec.workload.global_batch_tokens, loss)
        if not going and not self._measured:
            self._end()  # every rank is here: they took the same decision
        return going

    def pause(self) -> AbstractContextManager[None]:
        """``with recorder.pause():`` around an evaluation or a checkpoint, which are no part of a step."""
        return self._meter.pause()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._measured:
            return
        try:
            if error is None:
                self._end()
            elif isinstance(error, Exception) or _gave_up(error):
                trial = self._made(judge(error), cause(error), self._meter.alone())
                if trial.status is Status.CRASH and self._meter.ranks.size > 1:
                    time.sleep(LAST_S)  # it may only say that a peer is gone, which knows why
                self._append(trial)
        except PretuneError as trouble:
            if error is None:
                raise
            error.add_note(f"pretune recorded no trial: {trouble}")
        finally:
            self._watcher.dismiss()

    def abandon(self) -> None:
        """Record nothing, without asking the other ranks."""
        if not self._measured:
            self._watcher.dismiss()
            warnings.warn("the training ended before enough was measured; nothing is recorded", stacklevel=2)
        self._measured = True

    def _end(self) -> None:
        """Record what was measured; every rank takes part. The training goes on whatever the store says."""
        measured = self._meter.result()
        self._measured = True
        if self._meter.ranks.rank == 0:
            self._write(measured)
        self._watcher.dismiss()

    def _write(self, measured: dict[str, Any]) -> None:
        if measured["tokens_per_s"] is None:
            steps = self._meter.rule.warmup_windows
            warnings.warn(f"{steps} steps are too few to measure; nothing is recorded", stacklevel=4)
            return
        try:
            if not self._append(self._made(Status.OK, None, measured)):
                warnings.warn(
                    f"trial_id {self.spec.trial_id} is already in {self.store}; nothing is added",
                    stacklevel=4,
                )
        except PretuneError as trouble:
            warnings.warn(f"no trial is recorded: {trouble}", stacklevel=4)

    def _made(self, status: Status, reason: str | None, measured: dict[str, Any]) -> Trial:
        purpose = "diagnostic" if self._meter.diagnostic else self.spec.purpose
        return Trial(
            **dict(self.spec) | {"purpose": purpose},
            created_at=self._began,
            status=status,
            cause=reason,
            wall_s=time.perf_counter() - self._entered_s,
            software=versions(),
            **measured,
        )

    def _append(self, trial: Trial) -> bool:
        """Store the trial, unless another rank did or its id was used before. Raises :class:`StoreError`."""
        if not keep(trial, self.store):
            return False
        self.trial = trial
        return True


def _gave_up(error: BaseException) -> bool:
    """Whether a script left with an exit code that says so."""
    return isinstance(error, SystemExit) and error.code not in (None, 0)
