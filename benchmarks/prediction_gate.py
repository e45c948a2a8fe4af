"""The gate: no figure of the quick run may be worse than the committed one by more than its noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OURS = "pretune"
NOISE = 0.10  # of a figure: what changes that mean nothing, such as another seed of the trees, move it
HIGHER_IS_BETTER = ("rank_correlation",)


def figures(summary: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Name -> value and tolerance, of every figure that the gate holds."""
    found = {}
    for row in summary["rows"]:
        ours, spread = row["methods"][OURS], row["standard_deviation_over_draws"]
        error = ours[row["figure"]]
        found[f"{row['row']}: {row['figure']}"] = noted(
            error, max(NOISE * error, spread / summary["seeds"] ** 0.5)
        )
        found[f"{row['row']}: rank_correlation"] = noted(ours["rank_correlation"], 0.03)
    ratio = summary["intervals"]["all"][OURS]["over_raw_xgboost"]
    found["intervals: score over raw xgboost's"] = noted(ratio, NOISE * ratio)
    return found


def noted(value: float, tolerance: float) -> dict[str, float]:
    return {"value": round(value, 4), "tolerance": round(tolerance, 4)}


def write(summary: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(figures(summary), indent=1) + "\n")


def worse(summary: dict[str, Any], path: Path) -> list[str]:
    """What fell behind the committed figures, in words; a figure that is gone did, too."""
    now, said = figures(summary), []
    for name, reference in json.loads(path.read_text()).items():
        value = now[name]["value"] if name in now else float("nan")
        sign = -1 if name.endswith(HIGHER_IS_BETTER) else 1
        if not sign * (value - reference["value"]) <= reference["tolerance"]:  # no number is worse, too
            said.append(f"{name} was {reference['value']} (noise {reference['tolerance']}), is {value}")
    return said
