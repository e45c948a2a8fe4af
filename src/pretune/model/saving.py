"""How a surrogate is kept: UBJSON and JSON, versions, and rows to be predicted alike after loading."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from pretune.errors import InputError
from pretune.model.base import Prediction, Predictor
from pretune.model.columns import KNOWN_BEFORE

FORMAT = 4
SHEET = "surrogate.json"
CARD = "card.md"  # beside the surrogate, and the page of what tracks it
CHECK_ROWS = 5
ORIGIN = ("platform.name", "accelerator.name")  # identities that are no features, and tell newcomers
TOLERANCE = 1e-4  # boosters sum 32-bit floats, whose order may differ between machines


def known_columns(frame: pl.DataFrame, *more: str) -> list[dict[str, Any]]:
    """The rows as dicts of what is known before a trial, and the columns ``more`` where they exist.

    NaN, which JSON has no word for, becomes null: every reader takes both for unknown. Decimals,
    which it does not have either, become floats.
    """
    names = [name for name in frame.columns if KNOWN_BEFORE.match(name) or name in more]
    return frame.select(names).cast({cs.decimal(): pl.Float64}).fill_nan(None).to_dicts()


def rows_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The way back; a column of nulls only has no type, which every reader takes for unknown."""
    return pl.DataFrame(rows, infer_schema_length=None)


def write_sheet(surrogate: Predictor, folder: Path, state: dict[str, Any], rows: pl.DataFrame) -> None:
    """Write ``surrogate.json``: what was learned, with versions and predictions of a few ``rows``."""
    rows = rows.head(CHECK_ROWS)
    check = {"rows": known_columns(rows, *ORIGIN), "predictions": _figures(surrogate.predict(rows))}
    sheet = {
        "format": FORMAT,
        "kind": type(surrogate).__name__,
        "versions": versions(),
        **state,
        "check": check,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SHEET).write_text(json.dumps(sheet, indent=1), encoding="utf-8")


def read_sheet(kind: str, folder: Path) -> dict[str, Any]:
    """Raises :class:`InputError` when the folder holds no sheet of this kind and format."""
    path = folder / SHEET
    try:
        sheet: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: is no saved surrogate ({error}); save it again") from None
    if sheet.get("format") != FORMAT or sheet.get("kind") != kind:
        found = f"{sheet.get('kind')} of format {sheet.get('format')}"
        raise InputError(f"{path}: holds {found}, not {kind} of format {FORMAT}; load it with its own class")
    return sheet


def verify(surrogate: Predictor, folder: Path, sheet: dict[str, Any]) -> None:
    """Raises :class:`InputError` when the check rows are not predicted as they were before saving."""
    if not sheet["check"]["rows"]:
        return
    found = _figures(surrogate.predict(rows_frame(sheet["check"]["rows"])))
    for name, before in sheet["check"]["predictions"].items():
        if not np.allclose(found[name], before, rtol=TOLERANCE, atol=TOLERANCE):
            raise InputError(
                f"{folder / SHEET}: {name} of the check rows is {found[name][0]:g}, was {before[0]:g} when "
                f"saved with {sheet['versions']}; files were changed or versions differ: fit it again"
            )


def _figures(prediction: Prediction) -> dict[str, list[float]]:
    return {
        "log_mean": prediction.log_mean.tolist(),
        "log_low": np.log(np.maximum(prediction.low, 1e-300)).tolist(),
        "log_high": np.log(np.minimum(prediction.high, 1e300)).tolist(),
        "chance_to_run": prediction.chance_to_run.tolist(),
    }


def versions() -> dict[str, str]:
    """Of what a surrogate's figures depend on."""
    return {name: _version(name) for name in ("pretune", "xgboost", "polars", "numpy")}


def _version(distribution: str) -> str:
    for name in (distribution, f"{distribution}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
