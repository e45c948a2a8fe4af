"""What can be told of a job's trials before one is spent, without starting anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pretune.collector import readiness
from pretune.datasets.frameworks.base import Problem
from pretune.datasets.knobs import Knobs
from pretune.datasets.trial import TrialSpec
from pretune.errors import InputError
from pretune.model.physics.transformer import TransformerPhysics
from pretune.tuner.space import Candidates

SURE = 1.5  # times the device's memory: more than the estimate is off


@dataclass(frozen=True)
class Lacking:
    """The default configuration needs more memory than a device has; ``sure``: by more than a doubt."""

    problem: Problem
    sure: bool


def lacking_memory(candidates: Candidates, default: Knobs) -> Lacking | None:
    """None where it fits, or where the device's memory or the model's need is unknown."""
    capacity = candidates.platform.accelerator.memory_bytes
    one = Candidates(candidates.workload, candidates.platform, candidates.framework, [default])
    need = float(TransformerPhysics().memory_bytes(one.frame)[0])
    if not capacity or not need > capacity:  # a need that is unknown is NaN
        return None
    reason = (
        f"needs about {need / 2**30:.1f} GiB a device by physics, which has {capacity / 2**30:.1f}: it will "
        "probably run out of memory, and nothing can be compared with it; name one that fits under default"
    )
    return Lacking(Problem("default", reason), need > SURE * capacity)


def check_here(spec: TrialSpec, folder: Path) -> None:
    """Raises :class:`InputError` for what keeps every trial from running on this machine."""
    for about, reason in readiness.findings(spec, folder):
        raise InputError(f"{about}: {reason}")
