"""A tuning session: search within a budget, compare the winner with the defaults, answer. Resumable."""

from __future__ import annotations

import fcntl
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from pretune.collector.evidence import read_json, write_json
from pretune.collector.launchers import launcher_for
from pretune.collector.launchers.base import Launcher
from pretune.collector.launchers.groups import divided
from pretune.collector.launchers.hosts import LocalLauncher
from pretune.collector.launchers.ranks import RanksLauncher
from pretune.datasets.durable import named_folder
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Accelerator, Platform
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Measure, Trial
from pretune.errors import InputError
from pretune.mlflow_config.base import Tracker
from pretune.tuner.answer import Answer
from pretune.tuner.budget import Spending, in_words
from pretune.tuner.fitting import track_session_surrogate
from pretune.tuner.job import MAY_CHANGE, JobSpec, find_store
from pretune.tuner.journal import Journal
from pretune.tuner.numerics import LossCheck, fastest_that_learns
from pretune.tuner.prospect import check_here, lacking_memory
from pretune.tuner.reasons import Reasons, reasons
from pretune.tuner.rehearsal import Rehearsal, rehearse
from pretune.tuner.remedy import Failure, failure
from pretune.tuner.runner import TrialRunner, Watcher, Work
from pretune.tuner.search import Search, SessionState, Sheets, most_compared
from pretune.tuner.tuner import Tuner
from pretune.tuner.verify import Comparison, compare

SHARED = (
    "note: {} trials at a time share no device, but this machine's memory and buses: their speeds are those "
    "of a busy machine; winner and defaults are compared one at a time"
)
JOB = "job.yaml"  # in a session's folder: the job with all files that it names read in, itself one to tune


@dataclass(frozen=True)
class Opened:
    """A session's folder, held against others, with the launchers of its job."""

    state: SessionState
    launchers: list[Launcher]

    @property
    def launcher(self) -> Launcher:
        """Where what must not be disturbed runs."""
        return self.launchers[0]


@contextmanager
def open_session(job: JobSpec, out: Path, watcher: Watcher) -> Iterator[Opened]:
    """Begin a session of ``job`` in ``out``, or find the one that was begun there.

    Raises :class:`InputError` when ``out`` holds another job's, or another process runs it.
    """
    named_folder(out, f"--out {out}")
    with only_one(out), ExitStack() as stack:
        launchers = [stack.enter_context(each) for each in launchers_of(job, out / "runs")]
        launcher = launchers[0]
        path = out / "session.json"
        found = read_json(path)
        if found is None:
            state = _new_state(job, launcher, watcher)
        else:
            state = SessionState.from_mapping(found, str(path))
            if state.job_digest != job.digest():
                may_change = ", ".join(sorted(MAY_CHANGE))
                raise InputError(
                    f"{path}: job_digest: holds a session of another job (only {may_change} may change "
                    "between runs); name another folder with --out"
                )
            watcher.note(f"going on with session {state.id} in {out}")
        check_launcher(job, state.platform, launcher)
        write_json(path, state.model_dump(mode="json"))
        job.to_yaml(out / JOB)
        yield Opened(state, launchers)


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

    ``out/session.json`` says who it is, ``out/spent.json`` what it spent, ``out/trials/`` is what it did,
    ``out/runs/<trial_id>/`` the files of each trial. The search is followed by ``verify_pairs``
    rounds of comparison with the defaults; :class:`~pretune.tuner.budget.Budget` says what bounds which.
    ``beside``: trials to learn from that are in no history, such as those of another global batch.
    """

    def __init__(
        self,
        job: JobSpec,
        out: str | Path,
        tracker: Tracker,
        watcher: Watcher | None = None,
        beside: pl.DataFrame | None = None,
    ) -> None:
        self.job, self.out, self.beside = job, Path(out), beside
        self.watcher = watcher or Watcher()
        self.tracker = Journal(tracker, self.watcher, self.out)

    def run(self) -> Answer:
        """Search, compare, write the files. Raises :class:`InputError` when ``out`` holds another job."""
        history = self.job.history_frame(self.watcher.note)
        if self.beside is not None:
            history = pl.concat([history, self.beside], how="diagonal_relaxed")
        with open_session(self.job, self.out, self.watcher) as opened:
            self.state = opened.state
            self.candidates = self.job.candidates(self.state.platform)
            self.sheets = Sheets(self.job, self.state)
            default = self.job.default_knobs(self.state.platform)
            self._look_ahead(opened.launcher, default)
            if len(opened.launchers) > 1 and "local" in self.job.launcher:
                self.watcher.note(SHARED.format(self.job.parallel))
            self._begin_tracking()
            store, runs = TrialStore(self.out / "trials"), self.out / "runs"
            self.runner = TrialRunner(
                opened.launchers, store, runs, self.tracker, self.watcher, self.job.retries
            )
            devices = self.state.platform.devices * len(opened.launchers)
            stored = self.runner.stored.values()
            self.spending = self.runner.spending = Spending(self.out, self.job.budget, devices, stored)
            tuner = Tuner.over(self.candidates, history, self.job.strategy, self.job.seed)
            search = Search(self.job, tuner, self.runner, self.spending, self.sheets)
            with self.spending.during("search"):
                search.run()
            with self.spending.during("compare"):
                best, checks = self._fastest_that_learns(tuner, default)
                comparison = self._compare(tuner, best, default)
                rehearsal = self._rehearse(comparison)
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
            self.spending.asdict(len(tuner.trials)),
            search.over,
            self._failure(tuner, history) if comparison is None else None,
            self._reasons(tuner, comparison, default) if comparison else None,
            rehearsal,
            checks,
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
            check_here(self.sheets("ahead", "default", default), self.out / "runs")
        if (lacking := lacking_memory(self.candidates, default)) is not None:
            self.watcher.note(f"warning: {lacking.problem}")

    def _rehearse(self, comparison: Comparison | None) -> Rehearsal | None:
        if comparison is None or self.job.verify is None:
            return None
        self.watcher.expect(1, self.job.verify.minutes * 60)
        return rehearse(self.job.verify, comparison.recommended, self.runner, self.sheets)

    def _failure(self, tuner: Tuner, history: pl.DataFrame) -> Failure | None:
        if not tuner.trials:
            return None
        self.watcher.note("nothing ran: looking for the nearest configuration that should")
        return failure(self.candidates, self.job.space_of_knobs(), tuner.trials, history)

    def _reasons(self, tuner: Tuner, comparison: Comparison, default: Knobs) -> Reasons:
        knobs = self.job.space_of_knobs().knobs
        varied = {name: values for name, values in knobs.items() if len(values) > 1}
        roles = (comparison.winner, comparison.default, comparison.careful)
        compared = [trial for role in roles if role for trial in role.trials]
        return reasons(tuner, varied, comparison.recommended.knobs, default, compared)

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

    def _fastest_that_learns(self, tuner: Tuner, default: Knobs) -> tuple[Knobs | None, list[LossCheck]]:
        def run(suffix: str, measure: Measure, knobs: Knobs) -> Trial | None:
            spec = self.sheets(suffix, "verify", knobs)
            measure = measure.model_copy(update={"timeout_s": spec.measure.timeout_s})
            spec = spec.model_copy(update={"measure": measure})
            deadline = time.monotonic() + self.spending.held_left_s()
            return self.runner.run(Work(spec.trial_id, lambda: (spec, None), deadline=deadline))

        return fastest_that_learns(tuner.trials, default, self.job.framework, run)

    def _compare(self, tuner: Tuner, best: Knobs | None, default: Knobs) -> Comparison | None:
        if best is None:
            return None
        left = most_compared(self.job.verify_pairs)

        def run(suffix: str, purpose: str, knobs: Knobs) -> Trial | None:
            nonlocal left
            self.watcher.expect(left)
            self.watcher.spent(in_words(self.spending.asdict(len(tuner.trials))))
            left -= 1
            spec = self.sheets(suffix, purpose, knobs)
            deadline = time.monotonic() + self.spending.held_left_s()
            return self.runner.run(Work(spec.trial_id, lambda: (spec, None), deadline=deadline))

        workload, platform = self.candidates.workload, self.candidates.platform
        pairs = self.job.verify_pairs
        return compare(best, default, workload, platform, self.job.framework, tuner.trials, pairs, run)


def launchers_of(job: JobSpec, folder: Path) -> list[Launcher]:
    """The job's launchers, one for each trial at a time, for the backend of its platform or, with ``auto``,
    of this machine."""
    from pretune.collector.detect import detect_backend, local_devices

    backend = detect_backend() if job.platform == "auto" else job.platform.backend
    settings = job.launcher
    if settings.get("local") == {"devices": "auto"}:
        settings = settings | {"local": {"devices": local_devices(backend)}}
    if job.command.run is not None and "replay" not in settings:
        settings = {"warm": False} | settings  # nothing is forked that needs torch
    whole = launcher_for(settings, folder, backend)  # says what is wrong with it before it is divided
    if job.parallel == 1:
        return [whole]
    return [launcher_for(each, folder, backend) for each in divided(settings, job.parallel, backend)]


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
    with TemporaryDirectory() as folder, launchers_of(job, Path(folder))[0] as launcher:
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
