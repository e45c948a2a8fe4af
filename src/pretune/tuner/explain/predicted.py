"""What the platform's surrogate says of a knob, where too few pairs were run to measure it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from pretune.datasets.frameworks import FRAMEWORKS
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.schema import to_table
from pretune.datasets.trial import TrialSpec
from pretune.tuner.explain.effects import Effect
from pretune.tuner.portability.table import Problem
from pretune.tuner.space import Candidates

LEAST_TRIALS = 20  # of a platform, for a surrogate of it to be asked


@dataclass(frozen=True)
class Predicted:
    """An effect by the platform's surrogate, where too few pairs were run: the mean ratio over the recorded
    configurations that could have ``value``, and the range of nine tenths of them. No measurement."""

    knob: str
    reference: KnobValue | None
    value: KnobValue | None
    configurations: int
    ratio: float
    low: float
    high: float


def predicted_of(
    problem: Problem, j: int, settings: Sequence[Mapping[str, KnobValue]], untold: Sequence[Effect]
) -> list[Predicted]:
    """Of the effects that pairs do not tell, ``untold``; [] where the platform has too few trials, or its
    sources do not state all of the workload."""
    spec, mine = problem.whole(problem.platforms[j]), problem.on(problem.platforms[j])
    if len(mine) < LEAST_TRIALS or not untold or spec is None or problem.framework not in FRAMEWORKS:
        return []
    pairs = [_pairs(spec, settings, effect) for effect in untold]
    knobs = [each for some in pairs for pair in some for each in pair]
    if not knobs:
        return []
    from pretune.model import BoostedTrees

    surrogate = BoostedTrees().fit(pl.DataFrame(to_table(mine)))
    rows = Candidates(spec.workload, spec.platform, problem.framework, knobs).frame
    logs = surrogate.predict(rows).log_mean
    gains = np.split(logs[1::2] - logs[::2], np.cumsum([len(some) for some in pairs])[:-1])
    found = [_predicted(effect, gain) for effect, gain in zip(untold, gains, strict=True) if len(gain)]
    return sorted(found, key=lambda each: -abs(math.log(each.ratio)))


def _predicted(effect: Effect, gains: np.ndarray) -> Predicted:
    """``gains`` (n,): the log ratios of throughput."""
    low, high = np.exp(np.quantile(gains, (0.05, 0.95)))
    mean = float(np.exp(gains.mean()))
    return Predicted(effect.knob, effect.reference, effect.value, len(gains), mean, float(low), float(high))


def _pairs(
    spec: TrialSpec, settings: Sequence[Mapping[str, KnobValue]], effect: Effect
) -> list[tuple[Knobs, Knobs]]:
    """Each configuration with the knob at the reference and at the value, where both can run."""
    found = []
    for told in settings:
        before = _with(spec, told, effect.knob, effect.reference)
        after = _with(spec, told, effect.knob, effect.value)
        if before and after:
            found.append((before, after))
    return found


def _with(spec: TrialSpec, told: Mapping[str, KnobValue], name: str, value: KnobValue | None) -> Knobs | None:
    """A configuration with the knob at ``value``, resolved; None where that is not legal, or not read."""
    declared, workload, platform = FRAMEWORKS[spec.framework], spec.workload, spec.platform
    changed = {n: v for n, v in told.items() if n != name} | ({name: value} if value is not None else {})
    wanted = Knobs(**changed)
    if name in declared.unread(platform, wanted) or declared.problems(workload, platform, wanted):
        return None
    return declared.filled(workload, platform, wanted)
