"""``pretune ui``: MLflow's page of a session, light enough for a laptop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Tracking


def ui(
    out: Annotated[Path | None, typer.Option(help="Session folder. Default: the newest under runs/.")] = None,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
    tracking: Tracking = None,
) -> None:
    """Open the tracking page of a session in a browser (serves until Ctrl-C)."""
    from pretune.mlflow_config import ui_command
    from pretune.mlflow_config.settings import sqlite_uri

    uri = tracking or (None if out else os.environ.get("MLFLOW_TRACKING_URI")) or sqlite_uri(out or _newest())
    command, environment = ui_command(uri, port)
    print(f"http://127.0.0.1:{port}  (Ctrl-C ends it)", flush=True)
    os.execvpe(command[0], command, environment)


def _newest() -> Path:
    from pretune.errors import InputError

    found = sorted(Path("runs").glob("*/mlflow.db"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError("--out: no session is under runs/ here; name the folder of one")
    return found[-1].parent
