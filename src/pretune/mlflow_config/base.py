"""Tracking: where the story of sessions, trials and fits is told. It may fail; the session goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.datasets.trial import Trial, TrialSpec


class Tracker(ABC):
    """Sessions, trials and fits, begun and ended. Every call is idempotent: told twice, logged once.

    ``params["history"]`` of a session or a fit, where it is given, is the folder of the trial
    store that was learned from; it is also logged as the run's dataset, with its digest. A fit
    between the beginning of a session and the next belongs to that session.
    """

    @abstractmethod
    def session_begun(self, session_id: str, name: str, params: Mapping[str, Any]) -> str | None:
        """Open (or find again) the parent run of a session; returns its run id, None without one."""

    @abstractmethod
    def session_ended(
        self, session_id: str, metrics: Mapping[str, float], files: list[Path], note: str
    ) -> None:
        """Close the parent run; ``note`` is Markdown for its page."""

    @abstractmethod
    def trial_begun(self, spec: TrialSpec) -> None:
        """Open the child run of a trial of the session ``spec.session_id``."""

    @abstractmethod
    def trial_ended(self, trial: Trial, files: list[Path]) -> None:
        """Log parameters, metrics, window times as a metric history, and status; close the child run."""

    @abstractmethod
    def fit_begun(self, name: str, params: Mapping[str, Any]) -> None:
        """Open a run for the fit of a surrogate: one run for one ``name`` and the same ``params``."""

    @abstractmethod
    def fit_ended(self, name: str, metrics: Mapping[str, float], files: list[Path], model: Path) -> None:
        """Log errors, files and the surrogate saved under ``model`` as an MLflow model; close the run.

        A model card (:data:`pretune.model.saving.CARD`) among the files describes run and model.
        """
