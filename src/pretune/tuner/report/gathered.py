"""What a report is made of: the trials of a session or of a store, and what was told of them before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import polars as pl

from pretune.datasets.frameworks import FRAMEWORKS
from pretune.datasets.schema import to_table
from pretune.datasets.trial import Trial
from pretune.errors import InputError
from pretune.tuner.explain import Insight, explain
from pretune.tuner.job import find_store
from pretune.tuner.portability.table import DERIVED
from pretune.tuner.recall import Recalled, is_session, recall
from pretune.tuner.tables import Cell
from pretune.tuner.tuner import Predicted

COMPARING = ("default", "verify")  # purposes of trials that no search chose


@dataclass(frozen=True)
class Gathered:
    """``trials``: in the order in which they began, diagnoses left out. ``session``: None for a store.

    ``progress`` is told in a line what takes seconds.
    """

    place: str
    trials: Sequence[Trial]
    session: Recalled | None = None
    predicted: Mapping[str, Predicted] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda _: None

    @property
    def name(self) -> str:
        return self.session.answer.job.name if self.session else self.place

    @property
    def subject(self) -> str:
        """What was tuned and where; of several problems, how many there are."""
        if len(self.problems) == 1:
            return next(iter(self.problems))
        return f"{len(self.problems)} workloads and platforms"

    @cached_property
    def problems(self) -> dict[str, list[Trial]]:
        """The trials that may be compared, by workload and platform; those with most of them first."""
        found: dict[str, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(problem(trial), []).append(trial)
        return dict(sorted(found.items(), key=lambda each: -len(each[1])))

    def named(self, name: str) -> dict[str, Cell]:
        """The first cell of a row where there are several problems; nothing where there is one."""
        return {"problem": name} if len(self.problems) > 1 else {}

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The trials in the store's columns, in their order."""
        return pl.DataFrame(to_table(list(self.trials)))

    @cached_property
    def insights(self) -> list[Insight]:
        self.progress("knob effects: pairs of trials, and a surrogate where pairs are missing")
        return explain(self.trials)


def gather(place: str, progress: Callable[[str], None] = lambda _: None) -> Gathered:
    """Read a session's folder, or a store: a folder, a URL, or ``shipped``.

    Raises :class:`InputError` where there is neither, or nothing was recorded yet.
    """
    folder = Path(place)
    if is_session(folder):
        session = recall(folder)
        if not session.trials:
            raise InputError(f"{place}: no trial has ended yet; report when one has")
        return Gathered(place, session.trials, session, session.predicted, progress)
    trials = [trial for trial in find_store(place).trials() if trial.purpose != "diagnostic"]
    if not trials:
        raise InputError(f"{place}: is neither a session's folder nor a store with platform=*/*.parquet")
    return Gathered(place, sorted(trials, key=lambda each: each.created_at), progress=progress)


def problem(trial: Trial) -> str:
    return f"{trial.workload.name} ({trial.framework}) on {trial.platform.name}"


def naming(trials: Sequence[Trial]) -> Callable[[Trial], str]:
    """Names the configurations of one problem: ``zero_stage=2 micro_batch=4``, the knobs that vary among
    ``trials``, where they are not the stock configuration's; but for those that follow from others."""
    settings = [trial.knobs.settings() for trial in trials]
    names = dict.fromkeys(name for each in settings for name in each if name not in DERIVED)
    varied = [name for name in names if len({each.get(name) for each in settings}) > 1]
    stock = _stock(trials[0]) if trials else {}

    def name(trial: Trial) -> str:
        mine = trial.knobs.settings()
        told = (knob for knob in varied if mine.get(knob) not in (None, stock.get(knob)))
        return " ".join(f"{knob}={mine[knob]}" for knob in told) or "defaults"

    return name


def _stock(trial: Trial) -> dict[str, object]:
    """The framework's default where the trial ran; empty where that is not known."""
    declared = FRAMEWORKS.get(trial.framework)
    try:
        spec = trial.spec
        return dict(declared.default_knobs(spec.workload, spec.platform).settings()) if declared else {}
    except InputError:
        return {}


def counted(number: int, what: str) -> str:
    """``1 trial``, ``1,200 trials``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
