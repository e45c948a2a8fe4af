"""The policies: ways to choose a configuration for each platform of a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretune.tuner.portability.scores import harmonic
from pretune.tuner.portability.table import Array, Problem


@dataclass(frozen=True)
class Policy:
    """``rows`` (p,): the configuration that it runs on each platform, or None where nobody ran that there."""

    name: str
    rows: list[int | None]
    note: str = ""


def policies(problem: Problem, efficiency: Array) -> list[Policy]:
    """All but pretune's own; ``efficiency`` (c, p) is the application efficiency."""
    platforms = problem.platforms
    found = [Policy("stock defaults", [problem.default(platform) for platform in platforms])]
    everywhere = np.flatnonzero(np.isfinite(efficiency).all(axis=1))
    if len(everywhere):
        one = best_single(efficiency, everywhere.tolist())
        note = "chosen on these very figures" if len(everywhere) > 1 else "the only one that ran everywhere"
        found.append(Policy("best single configuration", [one] * len(platforms), note))
    for j, platform in enumerate(platforms):
        best = int(np.nanargmax(efficiency[:, j]))
        found.append(Policy(f"tuned on {platform.name}", [best] * len(platforms)))
    tuned: list[int | None] = [int(np.nanargmax(column)) for column in efficiency.T]
    return [
        *found,
        Policy("tuned on each", tuned, "1 by construction: the best known is what it is held against"),
    ]


def best_single(efficiency: Array, rows: Sequence[int]) -> int:
    """The row with the best harmonic mean over the platforms; of those that fail somewhere, the best mean."""
    return max(rows, key=lambda row: (harmonic(efficiency[row]), efficiency[row].mean()))
