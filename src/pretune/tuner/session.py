"""A tuning session: search within a budget, compare the winner with the defaults, answer. Resumable."""

from __future__ import annotations

import fcntl
import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import NonNegativeFloat

from pretune.collector.evidence import read_json, write_json
from pretune.collector.launchers import launcher_for
from pretune.collector.launchers.base import Launcher
from pretune.collector.launchers.hosts import LocalLauncher
from pretune.collector.launchers.ranks import RanksLauncher
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Accelerator, Platform
from pretune.datasets.spec import Spec
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial, TrialSpec
from pretune.errors import InputError
from pretune.mlflow_config.base import Tracker
from pretune.tuner.answer import Answer
from pretune.tuner.fitting import track_session_surrogate
from pretune.tuner.job import JobSpec, find_store
from pretune.tuner.journal import Journal
from pretune.tuner.prospect import check_here, lacking_memory
from pretune.tuner.runner import TrialRunner, Watcher
from pretune.tuner.tuner import Predicted, Tuner
from pretune.tuner.verify import Comparison, compare

MOST_TRIALS = 10_000  # where only minutes bound the search
JOB = "job.yaml"  # in a session's folder: the job with all files that it names read in, itself one to tune


class SessionState(Spec):
    """``session.json``: who the session is, and how long it searched. What it did is in the store.

    ``searched_s`` is what ``budget.minutes`` bounds: fits, start-ups and a trial that was cut off
    count, as no record of a trial does.
    """

    id: str
    job_digest: str
    created_at: datetime
    platform: Platform
    mlflow_run_id: str | None = None
    searched_s: NonNegativeFloat = 0.0


@dataclass(frozen=True)
class Opened:
    """A session's folder, held against others, with the launcher of its job."""

    state: SessionState
    launcher: Launcher


@contextmanager
def open_session(job: JobSpec, out: Path, watcher: Watcher) -> Iterator[Opened]:
    """Begin a session of ``job`` in ``out``, or find the one that was begun there.

    Raises :class:`InputError` when ``out`` holds another job's, or another process runs it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be made ({error.strerror}); name another folder") from None
    with only_one(out), open_launcher(job, out / "runs") as launcher:
        path = out / "session.json"
        found = read_json(path)
        if found is None:
            state = _new_state(job, launcher, watcher)
        else:
            state = SessionState.from_mapping(found, str(path))
            if state.job_digest != job.digest():
                raise InputError(
                    f"{path}: job_digest: holds a session of another job (only budget and verify_pairs may "
                    "change between runs); name another folder with --out"
                )
            watcher.note(f"going on with session {state.id} in {out}")
        check_launcher(job, state.platform, launcher)
        write_json(path, state.model_dump(mode="json"))
        job.to_yaml(out / JOB)
        yield Opened(state, launcher)


def _new_state(job: JobSpec, launcher: Launcher, watcher: Watcher) -> SessionState:
    if job.platform == "auto":
        watcher.note("measuring this machine: some seconds")
    return SessionState(
        id=f"{job.name}-{uuid.uuid4().hex[:8]}",
        job_digest=job.digest(),
        created_at=datetime.now(UTC),
        platform=find_platform(job, launcher),
    )


def check_launcher(job: JobSpec, platform: Platform, launcher: Launcher) -> None:
    """Raises :class:`InputError` where the launcher cannot be on the platform: its ranks, its backend."""
    from pretune.collector.detect import detect_backend

    reach = launcher.reach
    if reach is None:
        return
    if (reach.nodes, reach.ranks) != (platform.nodes, platform.devices_per_node):
        raise InputError(
            f"job {job.name}: launcher: starts {reach.ranks} ranks on each of {reach.nodes} hosts, but "
            f"platform {platform.name} has devices_per_node {platform.devices_per_node} and nodes "
            f"{platform.nodes}; make them agree"
        )
    if reach.here and platform.backend == "nccl" and detect_backend() != "nccl":
        raise InputError(
            f"job {job.name}: platform {platform.name}: backend: is nccl, but this machine has no GPU; "
            "use gloo, or a launcher that reaches GPUs"
        )


class TuningSession:
    """Runs ``job`` in the folder ``out``, or goes on with what was begun there.

    ``out/session.json`` says who it is and how long it searched, ``out/trials/`` is what it did,
    ``out/runs/<trial_id>/`` the files of each trial. The budget bounds the search; the
    comparison with the defaults, ``verify_pairs`` rounds of it, comes on top.
    """

    def __init__(
        self, job: JobSpec, out: str | Path, tracker: Tracker, watcher: Watcher | None = None
    ) -> None:
        self.job, self.out = job, Path(out)
        self.watcher = watcher or Watcher()
        self.tracker = Journal(tracker, self.watcher, self.out)

    def run(self) -> Answer:
        """Search, compare, write the files. Raises :class:`InputError` when ``out`` holds another job."""
        history = self.job.history_frame(self.watcher.note)
        with open_session(self.job, self.out, self.watcher) as opened:
            self.state = opened.state
            self.candidates = self.job.candidates(self.state.platform)
            default = self.job.default_knobs(self.state.platform)
            self._look_ahead(opened.launcher, default)
            self._begin_tracking()
            store, runs = TrialStore(self.out / "trials"), self.out / "runs"
            self.runner = TrialRunner(opened.launcher, store, runs, self.tracker, self.watcher)
            tuner = Tuner.over(self.candidates, history, self.job.strategy, self.job.seed)
            self._search(tuner)
            comparison = self._compare(tuner, default)
            self.watcher.expect(0)
        if tuner.trials and (learned := tuner.strategy.fitted()) is not None:
            track_session_surrogate(learned, tuner.trials, runs, self.out / "surrogate", self.tracker)
        reach = opened.launcher.reach
        answer = Answer(
            self.job,
            self.state,
            self.out,
            tuner.trials,
            comparison,
            self.candidates.dropped,
            reach.interfaces if reach else (),
        )
        files = answer.write()
        if self.state.mlflow_run_id:
            from pretune.tuner.report.beside import report_files

            files += report_files(self.out, self.watcher.note)
        self.tracker.session_ended(self.state.id, answer.metrics(), files, answer.markdown())
        return answer

    def _look_ahead(self, launcher: Launcher, default: Knobs) -> None:
        """What can be told before a trial is spent; ``pretune preflight`` looks at the hosts too."""
        if isinstance(launcher, LocalLauncher):
            check_here(self._sheet("ahead", "default", default), self.out / "runs")
        if (lacking := lacking_memory(self.candidates, default)) is not None:
            self.watcher.note(f"warning: {lacking.problem}")

    def _begin_tracking(self) -> None:
        none = self.job.history.path == "none"
        params = {
            "workload": self.job.workload().name,
            "model": self.job.model.name,
            "platform": self.state.platform.name,
            "framework": self.job.framework,
            "strategy": self.job.strategy,
            "seed": self.job.seed,
            "candidates": len(self.candidates),
            "history": self.job.history.path if none else str(find_store(self.job.history.path).root),
        }
        run_id = self.tracker.session_begun(self.state.id, self.job.name, params)
        if run_id and run_id != self.state.mlflow_run_id:
            self._save(mlflow_run_id=run_id)

    def _save(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)
        write_json(self.out / "session.json", self.state.model_dump(mode="json"))

    # -- the two phases -----------------------------------------------------------
    def _search(self, tuner: Tuner) -> None:
        budget, began = self.job.budget, time.monotonic()
        ended_s = sum(t.wall_s or 0.0 for t in self.runner.stored.values() if t.purpose == "search")
        spent_s = max(self.state.searched_s, ended_s)  # a kill -9 leaves no time to save what was spent
        deadline = began + budget.minutes * 60 - spent_s if budget.minutes else math.inf
        try:
            self._run_trials(tuner, deadline)
        finally:
            self._save(searched_s=spent_s + time.monotonic() - began)

    def _run_trials(self, tuner: Tuner, deadline: float) -> None:
        budget = self.job.budget
        most = min(budget.trials or MOST_TRIALS, len(self.candidates))
        for number in range(most):
            trial_id = f"{self.state.id}-t{number:03d}"
            if trial_id not in self.runner.stored and time.monotonic() >= deadline:
                break
            self._expect(most - number if budget.trials else None, deadline)

            def propose(trial_id: str = trial_id) -> tuple[TrialSpec, Predicted | None]:
                proposal = tuner.ask()[0]
                return self._sheet(trial_id, "search", proposal.knobs), proposal.predicted

            if self.runner.run(trial_id, propose, tuner.tell, deadline) is None:
                break

    def _expect(self, searches: int | None, deadline: float) -> None:
        more = None if searches is None else searches + 3 * self.job.verify_pairs + 1
        self.watcher.expect(more, None if math.isinf(deadline) else deadline - time.monotonic())

    def _compare(self, tuner: Tuner, default: Knobs) -> Comparison | None:
        best = tuner.best()
        if best is None:
            return None
        left = 3 * self.job.verify_pairs + 1

        def run(suffix: str, purpose: str, knobs: Knobs) -> Trial | None:
            nonlocal left
            self.watcher.expect(left)
            left -= 1
            trial_id = f"{self.state.id}-{suffix}"
            return self.runner.run(trial_id, lambda: (self._sheet(trial_id, purpose, knobs), None))

        workload, platform = self.candidates.workload, self.candidates.platform
        pairs = self.job.verify_pairs
        return compare(best.knobs, default, workload, platform, self.job.framework, tuner.trials, pairs, run)

    def _sheet(self, trial_id: str, purpose: Any, knobs: Knobs) -> TrialSpec:
        return TrialSpec(
            trial_id=trial_id,
            session_id=self.state.id,
            purpose=purpose,
            workload=self.candidates.workload,
            platform=self.candidates.platform,
            framework=self.job.framework,
            knobs=knobs,
            seed=self.job.seed,
            measure=self.job.measure,
            script=self.job.command,
        )


def open_launcher(job: JobSpec, folder: Path) -> Launcher:
    """The job's launcher, for the backend of its platform or, with ``auto``, of this machine."""
    from pretune.collector.detect import detect_backend, local_devices

    backend = detect_backend() if job.platform == "auto" else job.platform.backend
    settings = job.launcher
    if settings.get("local") == {"devices": "auto"}:
        settings = settings | {"local": {"devices": local_devices(backend)}}
    if job.command.run is not None and "replay" not in settings:
        settings = {"warm": False} | settings  # nothing is forked that needs torch
    return launcher_for(settings, folder, backend)


def find_platform(job: JobSpec, launcher: Launcher) -> Platform:
    """The job's platform; with ``auto``, what ``launcher`` reaches, probed (seconds)."""
    from pretune.collector.detect import detect_platform

    if job.platform != "auto":
        return job.platform
    if not isinstance(launcher, RanksLauncher):
        raise InputError(f"job {job.name}: platform: auto needs a launcher of ranks; name the platform")
    unprobed = Platform(
        name="unprobed",
        accelerator=Accelerator(name="unknown"),
        devices_per_node=launcher.reach.ranks,
        nodes=launcher.reach.nodes,
        backend=launcher.reach.backend,
    )
    job.default_knobs(unprobed)  # what is wrong with it is said before seconds are spent
    return detect_platform(launcher)


def platform_of(job: JobSpec) -> Platform:
    """The job's platform, without a session; with ``auto``, its launcher measures it (seconds)."""
    if job.platform != "auto":
        return job.platform
    with TemporaryDirectory() as folder, open_launcher(job, Path(folder)) as launcher:
        return find_platform(job, launcher)


@contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Hold ``out`` against a second session; the kernel lets go when this process ends, however it ends."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"--out {out}: another session is running there; wait, or name another"
            ) from None
        yield
