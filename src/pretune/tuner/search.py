"""The search of a session: which trials are run, one after the other, and why no more come."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pretune.collector.evidence import read_json
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.spec import Spec
from pretune.datasets.trial import Trial, TrialSpec
from pretune.tuner.budget import Spending, in_words
from pretune.tuner.job import JobSpec
from pretune.tuner.runner import TrialRunner, Work
from pretune.tuner.stopping import chance_to_beat
from pretune.tuner.tuner import Predicted, Tuner

MOST_TRIALS = 10_000  # where trials are not what bounds the search


class SessionState(Spec):
    """``session.json``: who the session is. What it did is in the store, what it spent in ``spent.json``."""

    id: str
    job_digest: str
    created_at: datetime
    platform: Platform
    mlflow_run_id: str | None = None


@dataclass(frozen=True)
class Sheets:
    """The sheets of a session's trials: all but the id, the purpose and the knobs is the same in each."""

    job: JobSpec
    state: SessionState

    def __call__(self, suffix: str, purpose: Any, knobs: Knobs) -> TrialSpec:
        return TrialSpec(
            trial_id=f"{self.state.id}-{suffix}",
            session_id=self.state.id,
            purpose=purpose,
            workload=self.job.workload(),
            platform=self.state.platform,
            framework=self.job.framework,
            knobs=knobs,
            seed=self.job.seed,
            measure=self.job.measure,
            script=self.job.command,
        )


def most_compared(pairs: int) -> int:
    """Trials of a comparison at most, if the first probe of a careful default fits."""
    return 3 * pairs + 1


@dataclass
class Search:
    """Runs the trials that ``tuner`` asks for until the budget, the space or their use is at an end.

    ``over`` says in the end which it was.
    """

    job: JobSpec
    tuner: Tuner
    runner: TrialRunner
    spending: Spending
    sheets: Sheets
    over: str = field(default="", init=False)

    def run(self) -> None:
        """Goes on where an earlier run of the session was killed."""
        self._hold_begun()
        self.runner.keep_busy(self._works(), self._ended)

    def _hold_begun(self) -> None:
        """What was being tried then is tried first, and nothing like it beside it."""
        for path in sorted(self.runner.runs.glob(f"{self.sheets.state.id}-t*/spec.json")):
            if path.parent.name not in self.runner.stored and (sheet := read_json(path)):
                self.tuner.hold(TrialSpec.from_mapping(sheet, str(path)).knobs)

    def _ended(self, trial: Trial | None) -> None:
        if trial is None:
            self.over = "the time is over"

    def _works(self) -> Iterator[Work]:
        """Each when there is a place to run it."""
        budget = self.job.budget
        most = min(budget.trials or MOST_TRIALS, len(self.tuner.candidates))
        for number in range(most):
            left_s = self.spending.left_s(self._compare_s(number))
            self._expect(number, most - number if budget.trials else None, left_s)
            suffix = f"t{number:03d}"
            if not self.over and not self._begun(suffix):
                self.over = self._enough(number)
            if self.over:
                return
            trial_id = f"{self.sheets.state.id}-{suffix}"
            deadline = time.monotonic() + left_s
            yield Work(trial_id, self._propose(suffix), self.tuner.tell, deadline, self._hopeless)
        self.over = "all trials were run" if most == budget.trials else "every configuration was tried"

    def _propose(self, suffix: str) -> Any:
        def propose() -> tuple[TrialSpec, Predicted | None]:
            proposal = self.tuner.ask()[0]
            return self.sheets(suffix, "search", proposal.knobs), proposal.predicted

        return propose

    def _begun(self, suffix: str) -> bool:
        trial_id = f"{self.sheets.state.id}-{suffix}"
        return trial_id in self.runner.stored or (self.runner.runs / trial_id / "spec.json").exists()

    def _enough(self, number: int) -> str:
        """Why no further trial is worth its cost; empty where one is."""
        least, share = self.job.budget.least_trials, self.job.budget.stop_below
        if share is None or min(number, len(self.tuner.trials)) < least:
            return ""
        gain = self.tuner.expected_gain()
        if gain is None or gain >= share:
            return ""
        return f"another trial is expected to bring {gain:.2%}, less than the {share:.2%} asked for"

    def _hopeless(self, window_times_s: Sequence[float]) -> bool:
        best, least = self.tuner.best(), self.job.stop_hopeless
        if best is None or not best.step_time_s or not least:
            return False
        return chance_to_beat(best.step_time_s, window_times_s) < least

    def _compare_s(self, ended: int) -> float:
        """What the comparison is expected to take, from what ``ended`` trials took with all around them."""
        each_s = self.spending.seconds("search") / ended if ended else 0.0
        return (most_compared(self.job.verify_pairs) + 1) * each_s

    def _expect(self, ended: int, searches: int | None, left_s: float) -> None:
        more = None if searches is None else searches + most_compared(self.job.verify_pairs)
        self.runner.watcher.expect(more, None if math.isinf(left_s) else left_s)
        self.runner.watcher.spent(in_words(self.spending.asdict(ended)))
