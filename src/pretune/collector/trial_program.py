"""One rank of a trial: ``run(FOLDER)``, in a process that torchrun started or an agent forked.

FOLDER holds ``spec.json``, a TrialSpec. The ranks write there, each file whole or not at all:

``progress.json``  rank 0, at each phase and window: ``phase``, ``windows``, ``time`` (Unix seconds), and
                   ``window_times_s`` of the windows that are measured.
``checkpoints.json``  rank 0 at its end: the seconds that each checkpoint took.
``memory.json``    rank 0 at its end: the memory in use while it measured, [Unix seconds, bytes].
``rank-R.json``    each rank at its end: ``ended`` "ok" or "exception", its status, its peak memory.
``result.json``    rank 0 after a good end: the fields of a Trial that were measured.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.collector.evidence import CHECKPOINT, CHECKPOINTS, MEMORY, STOP, write_json
from pretune.collector.process import enter_control_groups
from pretune.errors import PretuneError

if TYPE_CHECKING:
    from pretune.collector.device import PeakMemory


TRAIL_S = 1.0  # between two looks at the memory in use


class Unwritable(PretuneError):
    """The trial's folder takes no more files: the host's trouble, which says nothing of the configuration."""


class Evidence:
    """What this rank leaves in the trial's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory: PeakMemory | None = None  # once the libraries are imported
        self.rank = int(os.environ.get("RANK", "0"))
        self.trail: list[tuple[float, int]] = []
        self.saved: list[float] = []  # seconds of each checkpoint

    def progress(self, phase: str, windows: int = 0, window_times_s: Sequence[float] = ()) -> None:
        if self.rank == 0:
            record = {"phase": phase, "windows": windows, "time": time.time()}
            record |= {"window_times_s": window_times_s} if window_times_s else {}
            self._write("progress.json", record, durable=False)
            if phase == "measure":
                self._note_memory()

    def _note_memory(self) -> None:
        due = not self.trail or time.time() - self.trail[-1][0] >= TRAIL_S
        if due and self.memory and (used := self.memory.now()) is not None:
            self.trail.append((time.time(), used))

    def checkpointed(self, save: Callable[[Path], None]) -> None:
        begun = time.perf_counter()
        save(self.folder / CHECKPOINT)
        self.saved.append(time.perf_counter() - begun)

    def result(self, fields: dict[str, Any]) -> None:
        if self.rank == 0:
            self._write(MEMORY, self.trail)
            self._write(CHECKPOINTS, self.saved)
            self._write("result.json", fields)

    def ended(self, error: BaseException | None) -> None:
        from pretune.collector.outcome import describe
        from pretune.collector.software import versions

        how = {"ended": "exception", **describe(error)} if error else {"ended": "ok", "status": "ok"}
        record = {"rank": self.rank, "host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        memory = self.memory.read() if self.memory else {}
        self._write(f"rank-{self.rank}.json", {**record, "software": versions(), **how, **memory})

    def _write(self, name: str, record: Any, durable: bool = True) -> None:
        try:
            write_json(self.folder / name, record, durable)
        except OSError as error:
            raise Unwritable(f"{self.folder / name}: cannot be written ({error.strerror})") from error


def run(folder: Path) -> int:
    """Run this rank of the trial to its end; returns the exit code, ``os.EX_IOERR`` when it cannot write.

    For the environment that torchrun gives (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, …).
    The caller leaves at once (``rank.leave_after``): after a failure other ranks may still
    wait for this one, and nothing here may wait for them.
    """
    evidence = Evidence(folder)
    try:
        return _run(folder, evidence)
    except Unwritable as error:
        print(error, file=sys.stderr, flush=True)
        return os.EX_IOERR


def _run(folder: Path, evidence: Evidence) -> int:
    try:
        _train(folder, evidence)
    except Unwritable:
        raise
    except BaseException as error:
        evidence.ended(error)
        if not isinstance(error, Exception):
            raise
        print(f"rank {evidence.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    evidence.ended(None)
    return 0


def _train(folder: Path, evidence: Evidence) -> None:
    evidence.progress("import")
    from pretune.datasets.trial import TrialSpec

    text = (folder / "spec.json").read_bytes()
    spec = TrialSpec.from_mapping(json.loads(text), str(folder / "spec.json"))
    _prepare_environment(spec.platform.backend, spec.knobs.threads_per_rank, spec.knobs.environment())
    from pretune.collector.device import PeakMemory
    from pretune.collector.meter import Meter
    from pretune.collector.ranks import Ranks
    from pretune.collector.software import versions
    from pretune.collector.training import run as training

    training.load(spec.framework)
    gc.collect()
    gc.freeze()  # a collection would copy the libraries' pages into a fork, and count them as training's
    evidence.memory = PeakMemory()
    enter_control_groups()
    spec = training.resolve(spec)
    evidence.progress("init")
    device = training.join(spec, hashlib.sha256(text).hexdigest())
    evidence.progress("build")
    job = training.build(spec, device)
    meter = Meter(spec.measure, Ranks(), evidence.memory, evidence.progress, (folder / STOP).exists)
    startup_s = seconds_since_start()
    evidence.progress("warmup")
    batches, steps = meter.batches(job.batches()), 0
    while meter.step(spec.workload.global_batch_tokens, job.window(batches)):
        steps += 1
        if spec.measure.checkpoint_steps and steps % spec.measure.checkpoint_steps == 0:
            with meter.pause():
                evidence.checkpointed(job.save)
    evidence.result({**meter.result(), "startup_s": startup_s, "software": versions()})
    evidence.progress("done", meter.rule.windows)
    training.leave()


def _prepare_environment(backend: str, threads: int | None, variables: dict[str, str]) -> None:
    """Before torch and deepspeed are imported: they read these once."""
    if backend == "gloo":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.update(variables)


def seconds_since_start() -> float:
    """Age of this process; of its fork, when it was forked."""
    import psutil

    return max(time.time() - psutil.Process().create_time(), 0.0)
