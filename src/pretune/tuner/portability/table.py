"""What a history knows of one problem: every configuration on every platform."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.datasets.frameworks import FRAMEWORKS
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Fingerprint, StatedPlatform
from pretune.datasets.stated import StatedWorkload
from pretune.datasets.trial import Status, Trial, TrialSpec
from pretune.errors import InputError
from pretune.tuner.space import Key, key

Array = NDArray[np.float64]
DERIVED = ("dp", "accumulation")  # follow from the batch and the number of devices


@dataclass
class Problem:
    """One workload (model, batch, numerics) under one framework, on p platforms, in c configurations.

    Sequence length, batch and precision are known; of the model as much as its source states.
    ``trials``: by configuration and platform, those that ran it. A failed one does not support the platform;
    a cell without trials is not known, and neither supported nor not.
    """

    workload: StatedWorkload
    framework: str
    platforms: list[StatedPlatform]
    configurations: list[Knobs]
    trials: dict[tuple[Key, str], list[Trial]]

    @property
    def name(self) -> str:
        return f"{self.workload.name} ({self.framework})"

    @cached_property
    def speed(self) -> Array:
        """(c, p) tokens/s per device, the mean of the runs that ended well; 0: all failed; NaN: none ran."""
        return self._cells(self._mean)

    @cached_property
    def error(self) -> Array:
        """(c, p) relative standard error of ``speed``; NaN where nothing tells."""
        return self._cells(self._error)

    def row(self, knobs: Knobs) -> int | None:
        """The configuration that is ``knobs`` but for what devices decide."""
        wanted = choice(knobs)
        return next((i for i, each in enumerate(self.configurations) if choice(each) == wanted), None)

    def on(self, platform: StatedPlatform) -> list[Trial]:
        """All trials there."""
        return [trial for (_, name), told in self.trials.items() if name == platform.name for trial in told]

    def whole(self, platform: StatedPlatform) -> TrialSpec | None:
        """One of the trials there as pretune could run it; None where its source does not state all of it."""
        with contextlib.suppress(InputError):
            return self.on(platform)[0].spec
        return None

    def default(self, platform: StatedPlatform) -> int | None:
        """The framework's stock configuration there; None where it was not run, or is not known."""
        declared, spec = FRAMEWORKS.get(self.framework), self.whole(platform)
        if declared is None or spec is None:
            return None
        with contextlib.suppress(InputError):  # not even that can run there
            return self.row(declared.default_knobs(spec.workload, spec.platform))
        return None

    def _cells(self, figure: Any) -> Array:
        return np.array(
            [
                [figure(self.trials.get((choice(knobs), platform.name), [])) for platform in self.platforms]
                for knobs in self.configurations
            ]
        )

    @staticmethod
    def _mean(trials: Sequence[Trial]) -> float:
        good = [trial.tokens_per_s_per_device or 0.0 for trial in trials if trial.ok]
        if not trials:
            return math.nan
        return sum(good) / len(good) if good else 0.0

    @staticmethod
    def _error(trials: Sequence[Trial]) -> float:
        good = [trial for trial in trials if trial.ok]
        speeds = np.array([trial.tokens_per_s_per_device for trial in good], dtype=float)
        if len(speeds) > 1:
            return float(speeds.std(ddof=1) / speeds.mean() / math.sqrt(len(speeds)))
        for trial in good:
            if trial.tokens_per_s_std_error and trial.tokens_per_s:
                return trial.tokens_per_s_std_error / trial.tokens_per_s
        return math.nan


def choice(knobs: Knobs) -> Key:
    """What was chosen: the knobs but for those that the number of devices decides."""
    return frozenset((name, value) for name, value in key(knobs) if name not in DERIVED)


def problems(trials: Iterable[Trial], platforms: Sequence[str] = (), least: int = 2) -> list[Problem]:
    """The workloads that at least ``least`` platforms ran, those of most platforms first.

    ``platforms``: those that count; unless given, one per kind of hardware: of clusters of one kind that
    differ in size alone, the one with most trials. A trial whose source does not state sequence length, batch
    and precision is left out: nobody knows which problem it is of.
    """
    grouped: dict[tuple[StatedWorkload, str], dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        told = trial.workload
        known = told.sequence_length and told.global_batch_tokens and told.precision
        wanted = not platforms or trial.platform.name in platforms
        tells = trial.purpose != "diagnostic" and trial.status is not Status.INTERRUPTED
        if known and wanted and tells:
            grouped[told, trial.framework][trial.platform.name].append(trial)
    found = []
    for (workload, framework), by_platform in grouped.items():
        kept = by_platform if platforms else _one_of_each_kind(by_platform)
        if len(kept) >= least:
            found.append(_problem(workload, framework, kept))
    return sorted(found, key=lambda each: (-len(each.platforms), each.name))


def _one_of_each_kind(by_platform: dict[str, list[Trial]]) -> dict[str, list[Trial]]:
    kinds: dict[StatedPlatform, str] = {}
    for name, trials in by_platform.items():
        kind = kind_of(trials[0].platform)
        if kind not in kinds or len(trials) > len(by_platform[kinds[kind]]):
            kinds[kind] = name
    return {name: by_platform[name] for name in kinds.values()}


def kind_of(platform: StatedPlatform) -> StatedPlatform:
    """The same for every size of a cluster: its accelerator and links, without name, counts and probe."""
    left_out = {"name": "any", "nodes": 1, "devices_per_node": 1, "fingerprint": Fingerprint()}
    return platform.model_copy(update=left_out)


def _problem(workload: StatedWorkload, framework: str, by_platform: dict[str, list[Trial]]) -> Problem:
    cells: dict[tuple[Key, str], list[Trial]] = defaultdict(list)
    configurations: dict[Key, Knobs] = {}
    for name, trials in by_platform.items():
        for trial in trials:
            cells[choice(trial.knobs), name].append(trial)
            configurations.setdefault(choice(trial.knobs), trial.knobs)
    hardware = [trials[0].platform for _, trials in sorted(by_platform.items())]
    return Problem(workload, framework, hardware, list(configurations.values()), dict(cells))
