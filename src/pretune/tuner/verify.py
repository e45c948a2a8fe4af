"""Is the winner really faster? It and the defaults are run again in turn, and compared pair by pair."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pydantic import PositiveFloat, PositiveInt
from scipy import stats

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.spec import Spec
from pretune.datasets.trial import Measure, Trial
from pretune.datasets.workload import Workload
from pretune.tuner.space import Key, key

CONFIDENCE = 0.95
MOST_WINDOWS = 1_000_000  # where only minutes end a rehearsal

RunOne = Callable[[str, str, Knobs], Trial | None]  # suffix of the trial's id, purpose, knobs


class Verify(Spec):
    """``minutes`` of training with what is recommended, after the comparison.

    ``checkpoint_steps``: write a checkpoint after so many optimizer steps; a script of your own
    (``command``) writes its own.
    """

    minutes: PositiveFloat
    checkpoint_steps: PositiveInt | None = None

    def measure(self, usual: Measure) -> Measure:
        """Of the rehearsal, where trials take ``usual``."""
        seconds = self.minutes * 60
        updates = {
            "max_seconds": seconds,
            "max_windows": MOST_WINDOWS,
            "timeout_s": usual.timeout_s + 2 * seconds,
            "checkpoint_steps": self.checkpoint_steps,
        }
        return usual.model_copy(update=updates)


@dataclass
class Measured:
    """One configuration with the trials that were run to compare it."""

    knobs: Knobs
    trials: list[Trial] = field(default_factory=list)

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """Mean over the trials that ran; None when none did."""
        speeds = [speed(trial) for trial in self.trials if trial.ok]
        return float(np.mean(speeds)) if speeds else None

    def asdict(self) -> dict[str, Any]:
        """``spread`` is the standard deviation over the trials that ran."""
        speeds = [speed(trial) for trial in self.trials if trial.ok]
        return {
            "knobs": self.knobs.settings(),
            "tokens_per_s_per_device": self.tokens_per_s_per_device,
            "spread": float(np.std(speeds, ddof=1)) if len(speeds) > 1 else None,
            "trials": len(self.trials),
            "failed": [trial.cause for trial in self.trials if not trial.ok],
        }


@dataclass(frozen=True)
class Ratio:
    """Throughput of one configuration over another's, from ``pairs`` run side by side.

    ``ratio`` is the geometric mean; ``low`` to ``high`` a 95 % t-interval of the mean log
    ratio. With ``same``, both are one configuration, and the ratio is 1 without measuring.
    """

    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    same: bool = False

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Comparison:
    """The search's winner against the stock defaults and against the careful user's defaults."""

    winner: Measured
    default: Measured
    careful: Measured | None
    probes: list[Trial]  # the trials that found the largest micro batch

    def over_baselines(self, one: Measured) -> dict[str, Ratio | None]:
        return {
            "default": ratio(one, self.default),
            "careful": ratio(one, self.careful) if self.careful else None,
        }

    @property
    def speedup(self) -> dict[str, Ratio | None]:
        """What is recommended, over the baselines."""
        return self.over_baselines(self.recommended)

    @property
    def recommended(self) -> Measured:
        """What to use: the winner, unless a baseline measured faster beside it, or the winner never ran.

        Where no difference is shown either way, the faster of the two is the better guess.
        """
        better = [each for each in (self.default, self.careful) if each is not None and self._beaten_by(each)]
        return max(better, key=lambda each: each.tokens_per_s_per_device or 0.0, default=self.winner)

    def _beaten_by(self, other: Measured) -> bool:
        if self.winner.tokens_per_s_per_device is None:
            return other.tokens_per_s_per_device is not None
        found = ratio(self.winner, other).ratio
        return found is not None and found < 1


def compare(
    best: Knobs,
    default: Knobs,
    workload: Workload,
    platform: Platform,
    framework: str,
    searched: Iterable[Trial],
    pairs: int,
    run: RunOne,
) -> Comparison:
    """Run ``pairs`` rounds of the distinct configurations, their order rotated by one each round."""
    probes: list[Trial] = []
    careful = largest_that_fits(micro_batches(default, workload, platform, framework), searched, run, probes)
    roles = {"winner": best, "default": default} | ({"careful": careful} if careful else {})
    distinct: dict[Key, tuple[str, Measured]] = {}
    for role, knobs in roles.items():
        distinct.setdefault(key(knobs), (role, Measured(knobs)))
    contest = digest([measured.knobs for _, measured in distinct.values()])
    for number, turn in rounds(list(distinct.values()), pairs):
        for role, measured in turn:
            trial = run(f"v{number:02d}-{contest}-{role}", "verify", measured.knobs)
            if trial is not None:
                measured.trials.append(trial)
    found = {role: distinct[key(knobs)][1] for role, knobs in roles.items()}
    return Comparison(found["winner"], found["default"], found.get("careful"), probes)


def digest(contestants: list[Knobs]) -> str:
    """Names a comparison by who is compared: another winner, found with a larger budget, has other trials."""
    settings = json.dumps([knobs.settings() for knobs in contestants], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:4]


def rounds(entries: list[Any], count: int) -> Iterator[tuple[int, list[Any]]]:
    """``count`` rounds; each begins one entry later, so that none always runs first."""
    for number in range(count):
        start = number % len(entries)
        yield number, entries[start:] + entries[:start]


def micro_batches(default: Knobs, workload: Workload, platform: Platform, framework: str) -> Iterator[Knobs]:
    """The default configuration with every legal micro batch, the largest first."""
    declared = find_framework(framework)
    kept = {name: value for name, value in default.settings().items() if name != "accumulation"}
    for micro_batch in range(workload.global_batch_sequences, 0, -1):
        knobs = Knobs(**{**kept, "micro_batch": micro_batch})
        if not declared.problems(workload, platform, knobs):
            yield declared.filled(workload, platform, knobs)


def largest_that_fits(
    configurations: Iterable[Knobs], searched: Iterable[Trial], run: RunOne, probes: list[Trial]
) -> Knobs | None:
    """The first configuration that runs; what the search tried already is not tried again.

    Appends the trials that it took to ``probes``. None when nothing runs.
    """
    known: Mapping[Key, bool] = {key(trial.knobs): trial.ok for trial in searched}
    for knobs in configurations:
        runs = known.get(key(knobs))
        if runs is None:
            trial = run(f"c{knobs.micro_batch}", "default", knobs)
            if trial is None:
                return None
            probes.append(trial)
            runs = trial.ok
        if runs:
            return knobs
    return None


def ratio(one: Measured, other: Measured) -> Ratio:
    """``one`` over ``other``, from the rounds in which both ran."""
    if other is one:
        return Ratio(1.0, 1.0, 1.0, len(one.trials), same=True)
    logs = [
        math.log(speed(mine) / speed(theirs))
        for mine, theirs in zip(one.trials, other.trials, strict=False)
        if mine.ok and theirs.ok
    ]
    if not logs:
        return Ratio(None, None, None, 0)
    mean = float(np.mean(logs))
    if len(logs) == 1:
        return Ratio(math.exp(mean), None, None, 1)
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1)) * error
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def speed(trial: Trial) -> float:
    """tokens_per_s_per_device of a trial that ran."""
    assert trial.tokens_per_s_per_device is not None
    return trial.tokens_per_s_per_device
