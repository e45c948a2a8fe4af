"""Ask and tell: what to try next, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.schema import to_table
from pretune.datasets.trial import Status, Trial
from pretune.datasets.workload import Workload
from pretune.errors import InputError
from pretune.model.base import Prediction
from pretune.tuner.function import check_history
from pretune.tuner.space import Candidates, Space
from pretune.tuner.strategies import strategy as find_strategy


@dataclass(frozen=True)
class Predicted:
    """What was believed of one configuration before it ran: tokens/s per device, with a 90 % interval.

    ``out_of_domain`` says why it lies outside what was learned; None where it does not.
    """

    tokens_per_s_per_device: float
    low: float
    high: float
    chance_to_run: float
    out_of_domain: str | None = None

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Proposal:
    """A configuration to try next; ``predicted`` is None where the strategy has no model."""

    knobs: Knobs
    predicted: Predicted | None


class Tuner:
    """Chooses configurations of ``space`` for ``workload`` on ``platform``, helped by ``history``.

    ::

        tuner = pretune.Tuner({"micro_batch": [1, 2, 4], "zero_stage": [0, 1, 2, 3]}, workload, platform)
        for proposal in tuner.ask(4):
            tuner.tell(proposal, run(proposal.knobs))  # tokens/s per device; or a recorded Trial alone
        tuner.best()

    ``history``: a store's folder or URL, ``"shipped"``, or a frame in the store's columns
    (:meth:`TrialStore.frame`), failed trials included. Knows nothing of launchers or storage. The same
    seed and the same tells give the same proposals. Raises :class:`InputError` for a space of which nothing
    can run, and for a history that holds nothing.
    """

    def __init__(
        self,
        space: Space | Mapping[str, Any],
        workload: Workload,
        platform: Platform,
        history: pl.DataFrame | str | Path | None = None,
        framework: str = "deepspeed",
        strategy: str = "transfer",
        seed: int = 0,
    ) -> None:
        for name, given, kind in (("workload", workload, Workload), ("platform", platform, Platform)):
            if not isinstance(given, kind):
                raise InputError(f"{name}: is a {type(given).__name__}; give a pretune.{kind.__name__}")
        space = Space.of(space)
        if isinstance(history, str | Path):
            from pretune.tuner.job import read_history

            history = read_history(history)
        elif history is not None:
            check_history(history)
        self._begin(space.candidates(workload, platform, framework), history, strategy, seed)

    @classmethod
    def over(
        cls,
        candidates: Candidates,
        history: pl.DataFrame | None = None,
        strategy: str = "transfer",
        seed: int = 0,
    ) -> Self:
        """One that chooses among candidates that were enumerated before."""
        tuner = cls.__new__(cls)
        tuner._begin(candidates, history, strategy, seed)
        return tuner

    def _begin(self, candidates: Candidates, history: pl.DataFrame | None, strategy: str, seed: int) -> None:
        self.candidates = candidates
        empty = pl.DataFrame(to_table([]))
        self.strategy = find_strategy(strategy)(candidates.frame, empty if history is None else history, seed)
        self.trials: list[Trial] = []

    def ask(self, n: int = 1) -> list[Proposal]:
        """Up to n configurations never asked or told before, the most promising first.

        Each is chosen as if those that were asked for and not yet told had brought what is believed of them,
        so that what is tried at a time differs.
        """
        rows = self.strategy.ask(n)
        believed = self.strategy.predict()
        return [Proposal(self.candidates.knobs[row], predicted(believed, row)) for row in rows]

    def hold(self, knobs: Knobs) -> None:
        """A configuration is being tried that was asked for elsewhere (in a session that was killed)."""
        row = self.candidates.row_of(knobs)
        if row is not None:
            self.strategy.hold(row)

    def tell(
        self,
        told: Trial | Proposal | Knobs,
        tokens_per_s_per_device: float | None = None,
        cause: str = "it failed",
    ) -> None:
        """Learn from a trial; one that was interrupted, or is no candidate, is only remembered.

        ``told``: a recorded trial; or what was tried, with its speed, or None and the ``cause`` where it
        failed. Raises :class:`InputError` for anything else, and for a speed that is not above 0.
        """
        trial = told if isinstance(told, Trial) else self._made(told, tokens_per_s_per_device, cause)
        self.trials.append(trial)
        row = self.candidates.row_of(trial.knobs)
        if row is not None and trial.status is Status.INTERRUPTED:
            self.strategy.drop(row)
        elif row is not None:
            self.strategy.tell(row, trial)

    def expected_gain(self) -> float | None:
        """What another trial is expected to bring, as a share of the best throughput; None where nothing ran
        yet, or the strategy does not predict."""
        return self.strategy.expected_gain()

    def _made(self, told: Proposal | Knobs, speed: float | None, cause: str) -> Trial:
        knobs = told.knobs if isinstance(told, Proposal) else told
        if not isinstance(knobs, Knobs):
            raise InputError(f"tell: is given a {type(told).__name__}; give a Trial, a Proposal or Knobs")
        failed = {"status": Status.CRASH, "cause": cause}
        ran = {"status": Status.OK, "tokens_per_s_per_device": speed}
        known = self.candidates
        sheet = {
            "trial_id": f"told-{len(self.trials)}",
            "workload": known.workload,
            "platform": known.platform,
            "framework": known.framework,
            "knobs": knobs,
            "created_at": datetime.now(UTC),
        }
        return Trial.from_mapping(sheet | (failed if speed is None else ran), "tell")

    def best(self) -> Trial | None:
        """The fastest trial that ran; None while none did."""
        return fastest(self.trials)

    def ranking(self, top: int | None = None) -> list[Proposal]:
        """The candidates by predicted throughput x chance to run; [] where the strategy has no model."""
        believed = self.strategy.predict()
        if believed is None:
            return []
        order = np.argsort(-believed.mean * believed.chance_to_run, kind="stable")[:top]
        return [Proposal(self.candidates.knobs[row], predicted(believed, int(row))) for row in order]


def fastest(trials: Iterable[Trial]) -> Trial | None:
    """The trial with the most tokens per second and device among those that ran."""
    ran = [trial for trial in trials if trial.ok and trial.tokens_per_s_per_device]
    return max(ran, key=lambda trial: trial.tokens_per_s_per_device or -math.inf, default=None)


def predicted(believed: Prediction | None, row: int) -> Predicted | None:
    """One row of a prediction, in plain floats."""
    if believed is None:
        return None
    mean, low, high, chance = (
        float(column[row]) for column in (believed.mean, believed.low, believed.high, believed.chance_to_run)
    )
    outside = believed.out_of_domain[row] if believed.out_of_domain else None
    return Predicted(mean, low, high, chance, outside)
