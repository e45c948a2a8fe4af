"""A campaign: many trials spread over the space, recorded as history for the clusters to come."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.datasets.knobs import Knobs
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial, TrialSpec
from pretune.errors import InputError
from pretune.mlflow_config.base import Tracker
from pretune.tuner.job import JobSpec
from pretune.tuner.journal import Journal
from pretune.tuner.runner import TrialRunner, Watcher, Work
from pretune.tuner.session import Opened, open_session
from pretune.tuner.space import Candidates

# follow from the micro batch: as coordinates of their own they would choose it twice
DERIVED = ("knob.accumulation", "knob.dp")
POINTS, MOST_POINTS = 64, 16_384


@dataclass(frozen=True)
class Drift:
    """How the control configuration's throughput moved while the campaign ran.

    ``spread``: standard deviation over mean of its trials; ``trend``: its last third over
    its first third. Both 0 or 1 when nothing moved; None with fewer than three controls.
    """

    controls: int
    spread: float | None
    trend: float | None


@dataclass(frozen=True)
class CampaignAnswer:
    """What a campaign recorded: where, how many of each status, and how much the platform drifted."""

    session_id: str
    store: str
    statuses: dict[str, int]
    drift: Drift


class Campaign:
    """Records ``trials`` configurations of ``job``'s space in ``out``, in random order.

    The configurations fill the space evenly (see :func:`spread_over`) and depend on the
    space and the job's seed alone, so that campaigns on several platforms try the same
    ones. The default configuration is the control: it comes first, and again after every
    ``control_every`` trials. Started again, a campaign goes on where it was.
    """

    def __init__(
        self,
        job: JobSpec,
        out: str | Path,
        trials: int,
        tracker: Tracker,
        watcher: Watcher | None = None,
        control_every: int = 12,
    ) -> None:
        if trials < 1 or control_every < 1:
            raise InputError("campaign: trials and control_every must be at least 1")
        self.job, self.out, self.trials, self.control_every = job, Path(out), trials, control_every
        self.tracker, self.watcher = tracker, watcher or Watcher()

    def run(self) -> CampaignAnswer:
        """Run what is left of the campaign. Raises :class:`InputError` when ``out`` holds another job."""
        store, runs = TrialStore(self.out / "trials"), self.out / "runs"
        tracker = Journal(self.tracker, self.watcher, self.out)
        with open_session(self.job, self.out, self.watcher) as opened:
            plan = self._plan(opened)
            tracker.session_begun(
                opened.state.id,
                self.job.name,
                {"kind": "campaign", "trials": len(plan), "seed": self.job.seed},
            )
            runner = TrialRunner(opened.launchers, store, runs, tracker, self.watcher, self.job.retries)
            runner.keep_busy(self._works(plan))
        answer = self._answer(opened, list(runner.stored.values()))
        tracker.session_ended(opened.state.id, {"trials": float(len(plan))}, [], f"Campaign: {answer.drift}")
        return answer

    def _works(self, plan: list[TrialSpec]) -> Iterator[Work]:
        for number, spec in enumerate(plan):
            self.watcher.expect(len(plan) - number)
            yield Work(spec.trial_id, lambda spec=spec: (spec, None))  # type: ignore[misc]

    def _plan(self, opened: Opened) -> list[TrialSpec]:
        platform, session_id = opened.state.platform, opened.state.id
        candidates = self.job.candidates(platform)
        rows = spread_over(candidates, self.trials, self.job.seed)
        order = np.random.default_rng(self.job.seed).permutation(rows)
        control = self.job.default_knobs(platform)
        turns: list[tuple[str, Any, Knobs]] = []
        for number, row in enumerate(order):
            if number % self.control_every == 0:
                turns.append((f"c{number // self.control_every:03d}", "control", control))
            turns.append((f"h{row:05d}", "history", candidates.knobs[row]))
        turns.append(("c-last", "control", control))
        return [
            TrialSpec(
                trial_id=f"{session_id}-{suffix}",
                session_id=session_id,
                purpose=purpose,
                workload=candidates.workload,
                platform=platform,
                framework=self.job.framework,
                knobs=knobs,
                seed=self.job.seed,
                measure=self.job.measure,
                script=self.job.command,
            )
            for suffix, purpose, knobs in turns
        ]

    def _answer(self, opened: Opened, trials: list[Trial]) -> CampaignAnswer:
        statuses: dict[str, int] = {}
        for trial in trials:
            statuses[trial.status] = statuses.get(trial.status, 0) + 1
        return CampaignAnswer(opened.state.id, str(self.out / "trials"), statuses, drift(trials))


def drift(trials: list[Trial]) -> Drift:
    """The drift that the control trials among ``trials`` show."""
    controls = sorted((t for t in trials if t.purpose == "control" and t.ok), key=lambda t: t.created_at)
    speeds = [t.tokens_per_s for t in controls if t.tokens_per_s]
    if len(speeds) < 3:
        return Drift(len(speeds), None, None)
    third = len(speeds) // 3
    trend = statistics.mean(speeds[-third:]) / statistics.mean(speeds[:third])
    return Drift(len(speeds), statistics.stdev(speeds) / statistics.mean(speeds), trend)


def spread_over(candidates: Candidates, n: int, seed: int) -> list[int]:
    """n different rows of ``candidates`` that fill the space evenly, from a scrambled Sobol sequence.

    A point's coordinates choose one knob after the other, each among the values that are
    still possible given the earlier ones. So a value that constraints bind to few
    combinations (ZeRO-0 reads no bucket size) comes as often as the others. Fewer points
    are the beginning of more. Raises :class:`InputError` when there are fewer rows.
    """
    from scipy.stats import qmc

    if n > len(candidates):
        raise InputError(f"campaign: {n} trials, but the space has {len(candidates)} configurations")
    columns = [c for c in candidates.frame.columns if c.startswith("knob.") and c not in DERIVED]
    varying = [ranks for column in columns if (ranks := _ranks(candidates.frame[column])).any()]
    if not varying:
        return list(range(n))
    sequence = qmc.Sobol(len(varying), seed=seed)
    rows: dict[int, None] = {}  # in order
    for _ in range(MOST_POINTS // POINTS):
        for point in sequence.random(POINTS):
            rows.setdefault(_chosen(varying, point))
            if len(rows) == n:
                return list(rows)
    # what no point reached: the last rows of a space that is nearly exhausted
    return [*rows, *(row for row in range(len(candidates)) if row not in rows)][:n]


def _ranks(column: pl.Series) -> NDArray[np.int64]:
    """(n,) rank of each value among the distinct ones; all 0 for a constant."""
    order = {value: rank for rank, value in enumerate(column.unique().sort())}
    return np.array([order[value] for value in column])


def _chosen(varying: list[NDArray[np.int64]], point: NDArray[np.float64]) -> int:
    """The row that the coordinates in [0, 1) lead to, one per varying knob."""
    left = np.arange(len(varying[0]))
    for ranks, u in zip(varying, point, strict=True):
        possible = np.unique(ranks[left])
        left = left[ranks[left] == possible[int(u * len(possible))]]
    return int(left[0])
