"""What runs on a host for a trial: which module, and with which variables."""

from __future__ import annotations

from pathlib import Path

from pretune.collector import sheet
from pretune.datasets.trial import TrialSpec

# of the others a process runs in every rank; of these one on a host, which imports no torch and so is forked
ONCE_A_HOST = frozenset({"pretune.collector.script_program", "pretune.collector.readiness"})


def program(spec: TrialSpec, folder: Path) -> tuple[str, dict[str, str]]:
    """The module that is the trial, whose sheet lies in ``folder``, and the variables that it has from its
    start."""
    if spec.script.run is None:
        return "pretune.collector.trial_program", spec.knobs.environment()
    return "pretune.collector.script_program", sheet.environment(folder.resolve() / "spec.json")
