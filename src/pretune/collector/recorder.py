"""Record a trial from anyone's training loop: one ``with`` and one call per optimizer step."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pretune.collector.meter import Meter
from pretune.collector.outcome import cause, judge
from pretune.collector.ranks import Ranks
from pretune.collector.software import versions
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.trial import Measure, Status, Trial, TrialSpec
from pretune.datasets.workload import Workload
from pretune.errors import InputError

if TYPE_CHECKING:
    from pretune.datasets.store import TrialStore

Batch = TypeVar("Batch")


class TrialRecorder:
    """Measures the loop inside its ``with`` block and appends one Trial to a store.

    ::

        with TrialRecorder(workload=workload, platform=platform, knobs=knobs, store="trials") as recorder:
            for batch in recorder.batches(loader):
                loss = train(batch)  # forward, backward, optimizer step
                if not recorder.step(loss=loss):
                    break  # measured; going on is fine too, and costs nothing

    Made on every rank, after ``torch.distributed`` is set up; rank 0 alone writes. It
    waits for the device at the end of each measured step and changes nothing else. An
    exception is recorded with its status (``oom``, ``diverged``, ``crash``, ...) and goes on.
    ``trial`` is what was recorded, on rank 0.
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
    ) -> None:
        self.spec = TrialSpec(
            trial_id=trial_id or uuid.uuid4().hex,
            session_id=session_id,
            workload=workload,
            platform=platform,
            knobs=knobs,
            framework=framework,
            measure=measure or Measure(),
        )
        self.store = store
        self.trial: Trial | None = None

    def __enter__(self) -> Self:
        self._entered_s = time.perf_counter()
        ranks, devices = Ranks(), self.spec.platform.devices
        if ranks.size != devices:
            raise InputError(
                f"recorder: {ranks.size} ranks are joined, but the platform has {devices} devices; "
                "enter it on every rank, after torch.distributed is set up"
            )
        self._meter = Meter(self.spec.measure, ranks)
        return self

    def batches(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the time spent waiting for them is recorded."""
        return self._meter.batches(source)

    def step(self, tokens: int | None = None, loss: Any = None) -> bool:
        """One optimizer step ended; False once enough is measured.

        ``tokens``: what the whole job trained on in it; the workload's global batch unless given.
        """
        return self._meter.step(tokens or self.spec.workload.global_batch_tokens, loss)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            measured = self._meter.result()  # every rank takes part in it
            if measured["tokens_per_s"] is None:
                warnings.warn(
                    f"{self._meter.rule.warmup_windows} steps are too few to measure; nothing is recorded",
                    stacklevel=2,
                )
            else:
                self._record(Status.OK, None, measured)
        elif isinstance(error, Exception):
            self._record(judge(error), cause(error), self._meter.alone())

    def _record(self, status: Status, reason: str | None, measured: dict[str, Any]) -> None:
        if self._meter.ranks.rank != 0:
            return
        from pretune.datasets.store import TrialStore

        self.trial = Trial(
            **dict(self.spec),
            created_at=datetime.now(UTC),
            status=status,
            cause=reason,
            wall_s=time.perf_counter() - self._entered_s,
            software=versions(),
            **measured,
        )
        store = self.store if isinstance(self.store, TrialStore) else TrialStore(self.store)
        if any(path.stem == self.trial.trial_id for path in store.files()):
            warnings.warn(
                f"trial_id {self.trial.trial_id} is already in {store.root}; nothing is added", stacklevel=3
            )
        store.append(self.trial)
