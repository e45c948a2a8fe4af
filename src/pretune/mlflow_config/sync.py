"""Log what a tracking server missed, from the trial store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial
from pretune.mlflow_config.base import Tracker


def sync(
    store: TrialStore,
    session_id: str,
    tracker: Tracker,
    files: Callable[[Trial], list[Path]] = lambda _: [],
) -> int:
    """Tell ``tracker`` every stored trial of a session; returns how many there are.

    A tracker logs a trial once, so this can be repeated, also while the session runs.
    ``files`` gives the files that belong to a trial. Raises :class:`TrackingError` when the
    server does not answer; what it took until then stays.
    """
    trials = sorted(
        (trial for trial in store.trials() if trial.session_id == session_id), key=lambda t: t.created_at
    )
    for trial in trials:
        tracker.trial_ended(trial, files(trial))
    return len(trials)
