"""What a session's folder holds by now: its answer without running anything, also of one that was killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.collector.evidence import read_json
from pretune.datasets.knobs import Knobs
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial
from pretune.errors import InputError
from pretune.tuner.answer import Answer
from pretune.tuner.budget import Spending
from pretune.tuner.job import JobSpec
from pretune.tuner.runner import read_predicted
from pretune.tuner.search import SessionState
from pretune.tuner.session import JOB
from pretune.tuner.tuner import Predicted, fastest
from pretune.tuner.verify import compare


@dataclass(frozen=True)
class Recalled:
    """A session as far as it came. ``trials``: all that ended, comparison included, as their ids count them.

    ``predicted``: what was told before a trial, by its id. ``begun``: ids of trials that have not ended.
    ``written``: the answer as the session wrote it at its end; None where it has not ended with these trials.
    """

    answer: Answer
    trials: list[Trial]
    predicted: dict[str, Predicted]
    begun: list[str]
    written: dict[str, Any] | None


def is_session(folder: Path) -> bool:
    return (folder / "session.json").is_file()


def recall(folder: Path) -> Recalled:
    """Read ``folder``. Raises :class:`InputError` where it holds no session, or one without its job."""
    for name in ("session.json", JOB):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder / name}: is not there; name the --out folder of a session, "
                "or its store: the folder that holds platform=*/*.parquet"
            )
    path = folder / "session.json"
    state, job = SessionState.from_mapping(read_json(path), str(path)), JobSpec.from_yaml(folder / JOB)
    stored = {trial.trial_id: trial for trial in TrialStore(folder / "trials").trials()}
    mine = [trial for trial in stored.values() if trial.session_id == state.id]
    trials = sorted(mine, key=lambda trial: trial.trial_id)
    runs = folder / "runs"
    told = {trial.trial_id: found for trial in trials if (found := read_predicted(runs / trial.trial_id))}
    begun = sorted(path.parent.name for path in runs.glob("*/spec.json") if path.parent.name not in stored)
    answer = _answer(job, state, folder, trials)
    return Recalled(answer, trials, told, begun, _written(answer))


def _written(answer: Answer) -> dict[str, Any] | None:
    found: dict[str, Any] = read_json(answer.out / "best.json") or {"trials": {"list": []}}
    ids = [each["trial_id"] for each in found["trials"]["list"]]
    return found if "words" in found and ids == [trial.trial_id for trial in answer.trials] else None


def _answer(job: JobSpec, state: SessionState, folder: Path, trials: list[Trial]) -> Answer:
    """As the session itself would, from the trials that it has run so far."""
    searched = [trial for trial in trials if trial.purpose == "search"]
    by_id = {trial.trial_id: trial for trial in trials}

    def run(suffix: str, _purpose: str, _knobs: Knobs) -> Trial | None:
        return by_id.get(f"{state.id}-{suffix}")

    best, comparison = fastest(searched), None
    if best is not None:
        default, workload = job.default_knobs(state.platform), job.workload()
        comparison = compare(
            best.knobs, default, workload, state.platform, job.framework, searched, job.verify_pairs, run
        )
    dropped = job.candidates(state.platform).dropped
    spent = Spending(folder, job.budget, state.platform.devices, trials).asdict(len(searched))
    return Answer(job, state, folder, searched, comparison, dropped, spent)
