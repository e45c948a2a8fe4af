"""Options that several commands share, and how they print."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

Job = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="What to tune.")]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, progress on standard error.")
]
Tracking = Annotated[
    str | None,
    typer.Option(
        help="MLflow tracking URI, or 'none'. Default: MLFLOW_TRACKING_URI, else sqlite in the out folder."
    ),
]
HistoryDir = Annotated[
    str | None, typer.Option(help="Store of other platforms' trials: a folder, 'shipped' or 'none'.")
]


@contextlib.contextmanager
def only_json(wanted: bool) -> Iterator[None]:
    """While a command works, what libraries print goes to standard error."""
    if not wanted:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def print_json(data: Any) -> None:
    """One object, on one line. A figure that is not finite becomes null: JSON has no word for it."""
    print(json.dumps(_finite(data)))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
        return None
    return data
