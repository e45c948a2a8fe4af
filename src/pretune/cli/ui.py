"""``pretune ui``: MLflow's page of a session, light enough for a laptop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Json, Tracking, print_json


def ui(
    out: Annotated[Path | None, typer.Option(help="Session folder. Default: the newest under runs/.")] = None,
    port: Annotated[int, typer.Option(help="Port on this machine.", min=1, max=65535)] = 5000,
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Open the tracking page of a session in a browser (serves until Ctrl-C)."""
    from pretune.mlflow_config import ui_command
    from pretune.mlflow_config.settings import sqlite_uri

    uri = tracking or (None if out else os.environ.get("MLFLOW_TRACKING_URI")) or sqlite_uri(out or _newest())
    command, environment = ui_command(uri, port)
    page = f"http://127.0.0.1:{port}"
    if as_json:
        print_json({"page": page, "tracking": uri})
    else:
        print(f"{page}  (Ctrl-C ends it)")
    sys.stdout.flush()
    if as_json:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the server says is no part of the object
    os.execvpe(command[0], command, environment)


def page_command(out: Path, tracking: str | None) -> str:
    """What opens the page of a session in ``out`` that was tracked where ``tracking`` says."""
    import shlex

    uri = tracking or os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None:
        return f"pretune ui --out {shlex.quote(str(out))}"
    return uri if uri.startswith("http") else f"pretune ui --tracking {shlex.quote(uri)}"


def _newest() -> Path:
    from pretune.errors import InputError

    found = sorted(Path("runs").glob("*/mlflow.db"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError("--out: no session is under runs/ here; name the folder of one")
    return found[-1].parent
