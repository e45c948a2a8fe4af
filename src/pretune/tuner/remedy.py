"""A space in which nothing ran: why, by how much, and the nearest configuration that should run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.frameworks.base import Framework
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.schema import to_table
from pretune.datasets.trial import Status, Trial
from pretune.errors import InputError
from pretune.model import TransferSurrogate
from pretune.tuner.space import Candidates, Space

GIB = 2**30
LIKELY = 0.5  # chance to run, of what is called likely to
# knobs that bring the need for memory down, with the values to look at; micro_batch comes beside them
RELIEF: dict[str, tuple[KnobValue, ...]] = {
    "zero_stage": (1, 2, 3),
    "activation_checkpointing": ("selective", "full"),
    "offload_optimizer": ("cpu",),
    "tp": (2, 4, 8),
    "pp": (2, 4, 8),
}
DERIVED = ("dp", "accumulation")


@dataclass(frozen=True)
class Nearest:
    """The configuration with the fewest ``changes`` from one that was tried, and of those the fastest, that
    is likely to run. ``in_space``: what it changes are knobs that the space leaves open."""

    knobs: dict[str, KnobValue]
    changes: dict[str, KnobValue]
    need_bytes: float | None
    chance_to_run: float
    in_space: bool


@dataclass(frozen=True)
class Failure:
    """``causes``: how many trials ended so, by status and cause. ``need_bytes``: the least and the most that
    they need of a device by the model; None where it cannot say. ``device_bytes``: what one has."""

    trials: int
    causes: dict[str, int]
    need_bytes: tuple[float, float] | None
    device_bytes: float | None
    nearest: Nearest | None

    def asdict(self) -> dict[str, Any]:
        return asdict(self)

    def sentences(self) -> list[str]:
        """Why nothing ran and what to try, a line each."""
        causes = "; ".join(f"{count} x {cause}" for cause, count in self.causes.items())
        return [f"none of {self.trials} trials ran ({causes})", *self._memory(), self._remedy()]

    def _memory(self) -> list[str]:
        if self.need_bytes is None:
            return []
        least, most = (f"{need / GIB:.2f}" for need in self.need_bytes)
        needs = f"{least} GiB" if least == most else f"{least} to {most} GiB"
        if self.device_bytes is None:
            return [f"by the model they need {needs} of a device, whose memory the platform does not state"]
        times = self.need_bytes[0] / self.device_bytes
        return [
            f"by the model they need {needs} of a device that has {self.device_bytes / GIB:.2f} GiB: "
            + (f"the least is {times:.2f}x of that" if times > 1 else "memory alone does not explain it")
        ]

    def _remedy(self) -> str:
        if self.nearest is None:
            return "nothing that the framework allows is likely to run; use more devices, or a smaller model"
        changes = ", ".join(f"{name}: {value}" for name, value in self.nearest.changes.items())
        need = "" if self.nearest.need_bytes is None else f" with {self.nearest.need_bytes / GIB:.2f} GiB"
        where = "" if self.nearest.in_space else ", which the space excludes"
        return f"likely to run{need} ({self.nearest.chance_to_run:.0%}): {changes}{where}"


def failure(candidates: Candidates, space: Space, trials: Sequence[Trial], history: pl.DataFrame) -> Failure:
    """Of a search in which no trial of ``trials`` (at least one) ran."""
    surrogate = TransferSurrogate(candidates.platform.name)
    told = pl.DataFrame(to_table([trial for trial in trials if trial.status is not Status.INTERRUPTED]))
    surrogate.fit(pl.concat([history, told], how="diagonal_relaxed"))
    tried = [Knobs(**trial.knobs.settings()) for trial in trials]
    need = surrogate.memory_bytes(_of(candidates, tried).frame)
    known = bool(np.isfinite(need).all())
    start = tried[int(np.argmin(need))] if known else tried[0]
    capacity = candidates.platform.accelerator.memory_bytes
    return Failure(
        len(trials),
        dict(Counter(f"{trial.status}: {trial.cause}" for trial in trials).most_common()),
        (float(need.min()), float(need.max())) if known else None,
        None if capacity is None else float(capacity),
        _nearest(candidates, space, start, surrogate),
    )


def _nearest(
    candidates: Candidates, space: Space, start: Knobs, surrogate: TransferSurrogate
) -> Nearest | None:
    """Within what the space leaves open, else beyond it; its constraints hold in either."""
    for in_space in (True, False):
        try:
            found = _around(candidates, space, start, in_space)
        except InputError:  # nothing there is legal
            continue
        believed, need = surrogate.predict(found.frame), surrogate.memory_bytes(found.frame)
        likely = np.flatnonzero(believed.chance_to_run >= LIKELY)
        if not len(likely):
            continue
        changes = [_changes(start, found.knobs[int(row)]) for row in likely]
        best = min(range(len(likely)), key=lambda i: (len(changes[i]), -believed.log_mean[likely[i]]))
        row = int(likely[best])
        return Nearest(
            found.knobs[row].settings(),
            changes[best],
            float(need[row]) if np.isfinite(need[row]) else None,
            float(believed.chance_to_run[row]),
            in_space,
        )
    return None


def _around(candidates: Candidates, space: Space, start: Knobs, in_space: bool) -> Candidates:
    """The legal configurations that differ from ``start`` in knobs that relieve memory."""
    declared = find_framework(candidates.framework)
    fixed = {name: [value] for name, value in start.settings().items() if name not in DERIVED}
    relieved = dict(_relief(declared, candidates, start))
    if in_space:
        relieved = {name: values for name, values in relieved.items() if name not in space.knobs}
    wider = space.model_copy(update={"knobs": fixed | relieved, "allow_numerics": True})
    return wider.candidates(candidates.workload, candidates.platform, candidates.framework)


def _relief(
    declared: Framework, candidates: Candidates, start: Knobs
) -> Iterator[tuple[str, list[KnobValue]]]:
    settings: Mapping[str, KnobValue] = start.settings()
    sequences, most = candidates.workload.global_batch_sequences, int(settings.get("micro_batch", 1))
    yield "micro_batch", [n for n in range(1, most + 1) if sequences % n == 0]
    for name, values in RELIEF.items():
        if name in declared.knobs:
            now = settings.get(name, declared.knobs[name].default)
            yield name, list(dict.fromkeys([*([] if now is None else [now]), *values]))


def _changes(start: Knobs, found: Knobs) -> dict[str, KnobValue]:
    before = start.settings()
    return {
        name: value
        for name, value in found.settings().items()
        if name not in DERIVED and name in ("micro_batch", *RELIEF) and value != before.get(name)
    }


def _of(candidates: Candidates, knobs: list[Knobs]) -> Candidates:
    return Candidates(candidates.workload, candidates.platform, candidates.framework, knobs)
