"""Trials that were recorded before, played again: how recorded spaces are studied."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from pretune.collector.launchers.base import Handle, Launcher
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import StatedTrial, Trial, TrialSpec
from pretune.errors import InputError


class ReplayLauncher(Launcher):
    """Answers a sheet with one of the recorded trials of the same platform, workload and knobs.

    Among repeats, the sheet's seed and its place in the session decide. A configuration that was never
    recorded cannot be launched: its outcome is not known, not even whether it runs.
    """

    def __init__(self, recorded: TrialStore | Iterable[Trial], folder: str | Path) -> None:
        self.folder = Path(folder)
        self._recorded: dict[tuple, list[Trial]] = defaultdict(list)
        for trial in recorded.trials() if isinstance(recorded, TrialStore) else recorded:
            self._recorded[_key(trial)].append(trial)
        for repeats in self._recorded.values():
            repeats.sort(key=lambda trial: trial.trial_id)

    def submit(self, spec: TrialSpec) -> Handle:
        if _key(spec) not in self._recorded:  # wherever it is tried again
            raise InputError(
                f"replay: no recorded trial of {spec.workload.name} on {spec.platform.name} has knobs "
                f"{spec.knobs.settings()}; narrow the space to what was recorded"
            )
        return Handle(spec, self.folder / spec.trial_id)

    def poll(self, handle: Handle) -> Trial:
        repeats = self._recorded[_key(handle.spec)]
        spec = handle.spec
        place = f"{spec.seed}{spec.trial_id.removeprefix(spec.session_id or '')}"
        digest = hashlib.sha256(place.encode()).digest()
        chosen = repeats[int.from_bytes(digest[:8]) % len(repeats)]
        return Trial.model_validate(chosen.model_dump() | spec.model_dump())

    def kill(self, handle: Handle) -> None:
        """Nothing runs."""


def _key(spec: StatedTrial) -> tuple:
    knobs = frozenset(spec.knobs.settings().items())
    return spec.platform.name, spec.workload.model_dump_json(), spec.framework, knobs
