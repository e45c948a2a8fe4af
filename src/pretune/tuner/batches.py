"""A job that allows several global batches: each tuned in turn, a source for the next, and never ranked.

Another global batch is another training run: fewer optimizer steps, another learning rate, another loss. Its
tokens per second are therefore shown beside those of the others, and none is called the best.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pretune.datasets.store import TrialStore
from pretune.mlflow_config.base import Tracker
from pretune.tuner.answer import Answer
from pretune.tuner.budget import BOUNDS, Budget
from pretune.tuner.job import JobSpec
from pretune.tuner.runner import Watcher
from pretune.tuner.session import TuningSession


@dataclass
class SideBySide:
    """The answers of a job's global batches, in the order that it lists them."""

    job: JobSpec
    answers: list[Answer]

    def asdict(self) -> dict[str, Any]:
        """The object that ``pretune tune --json`` prints."""
        return {"batches": [{"global_batch_tokens": _tokens(each), **each.asdict()} for each in self.answers]}

    @property
    def found(self) -> bool:
        """Whether something ran at every global batch."""
        return all(answer.comparison is not None for answer in self.answers)

    def write(self, out: Path) -> Path:
        path = out / "batches.json"
        path.write_text(json.dumps(self.asdict(), indent=2) + "\n", encoding="utf-8")
        return path


def tune_batches(job: JobSpec, out: Path, tracker: Tracker, watcher: Watcher) -> SideBySide:
    """Tune every global batch of ``job`` in ``out/batch-<tokens>``, within its budget as a whole.

    What is left of each bound is shared out evenly among the batches that are left. Started again, it
    goes on. Raises :class:`InputError` as a session does.
    """
    answers: list[Answer] = []
    for number, batch in enumerate(job.global_batches):
        watcher.note(f"global batch {batch} tokens, {number + 1} of {len(job.global_batches)}")
        budget = _share(job.budget, answers, len(job.global_batches) - number)
        one = job.model_copy(update={"global_batch_tokens": batch, "budget": budget})
        session = TuningSession(one, out / f"batch-{batch}", tracker, watcher, beside=_told(answers))
        answers.append(session.run())
    found = SideBySide(job, answers)
    found.write(out)
    return found


def _share(budget: Budget, ended: list[Answer], left: int) -> Budget:
    """Of what is left of ``budget`` for the next of ``left`` sessions; at least a trial, or a millionth."""
    updates: dict[str, float] = {}
    for name in BOUNDS:
        if (whole := getattr(budget, name)) is not None:
            spent = sum(answer.spent[name]["spent"] for answer in ended)
            share = max(whole - spent, 0) / left
            updates[name] = max(math.ceil(share), 1) if name == "trials" else max(share, whole * 1e-6)
    return budget.model_copy(update=updates)


def _told(answers: list[Answer]) -> pl.DataFrame | None:
    """The trials of the batches that were tuned before."""
    frames = [TrialStore(answer.out / "trials").frame() for answer in answers]
    return pl.concat(frames, how="diagonal_relaxed") if frames else None


def _tokens(answer: Answer) -> int:
    return answer.job.workload().global_batch_tokens
