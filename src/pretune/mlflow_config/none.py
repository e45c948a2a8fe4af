"""No tracking: how pretune runs where nobody asked for MLflow. The trial store still holds everything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.datasets.trial import Trial, TrialSpec
from pretune.mlflow_config.base import Tracker


class NoTracker(Tracker):
    """Takes every call and keeps nothing."""

    def session_begun(self, session_id: str, name: str, params: Mapping[str, Any]) -> str | None:
        return None

    def session_ended(
        self, session_id: str, metrics: Mapping[str, float], files: list[Path], note: str
    ) -> None:
        return None

    def trial_begun(self, spec: TrialSpec) -> None:
        return None

    def trial_ended(self, trial: Trial, files: list[Path]) -> None:
        return None

    def fit_begun(self, name: str, params: Mapping[str, Any]) -> None:
        return None

    def fit_ended(self, name: str, metrics: Mapping[str, float], files: list[Path], model: Path) -> None:
        return None
