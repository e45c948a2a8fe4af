"""``pretune fit``: train the surrogates of a history, with errors that were not learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Json, Tracking, only_json, print_json


def fit(
    history: Annotated[str, typer.Option(help="Store of trials: a folder, or 'shipped'.")] = "shipped",
    out: Annotated[Path, typer.Option(help="Where the surrogates are saved.")] = Path("surrogates"),
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Fit and save one surrogate per platform, cross-validated."""
    raise NotImplementedError
