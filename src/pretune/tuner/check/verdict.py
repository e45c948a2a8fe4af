"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pretune.datasets.frameworks.base import Problem


@dataclass
class Verdict:
    """``problems`` keep it from running; ``warnings`` do not.

    ``resolved``: every derived value by pretune's names, and under ``config`` the framework's own file with
    nothing left open, where there is one; {} when nothing is legal. Of a template with lists or a space,
    ``combinations`` were judged and ``legal_combinations`` can run: ``resolved`` is the first of those.
    """

    framework: str
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    resolved: dict[str, Any] = field(default_factory=dict)
    combinations: int = 1
    legal_combinations: int = 0

    @property
    def legal(self) -> bool:
        return self.legal_combinations > 0

    def asdict(self) -> dict[str, Any]:
        return {
            "legal": self.legal,
            "framework": self.framework,
            "problems": [_shown(each) for each in self.problems],
            "warnings": [_shown(each) for each in self.warnings],
            "combinations": self.combinations,
            "legal_combinations": self.legal_combinations,
            "resolved": self.resolved,
        }


def _shown(problem: Problem) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "field": problem.field,
        "reason": problem.reason,
        "nearest": list(problem.nearest),
    }
    return shown | ({"nearest_devices": list(problem.devices)} if problem.devices else {})
