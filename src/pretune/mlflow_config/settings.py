"""Where runs are kept: sqlite beside the trials, or the place that the user names; and the page of it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from pretune.errors import InputError
from pretune.mlflow_config.base import Tracker
from pretune.mlflow_config.none import NoTracker

EXPERIMENT = "pretune"
_SQLITE = "sqlite:///"


def tracker(uri: str | None, out: Path) -> Tracker:
    """The tracker that a setting asks for.

    ``uri``: an MLflow tracking URI; "none" for no tracking; None for the environment's
    ``MLFLOW_TRACKING_URI``, else ``out/mlflow.db`` with the artifacts under
    ``out/mlartifacts``. Where nobody named a place and MLflow is not installed, nothing is
    tracked. Raises :class:`InputError` when a place is named and MLflow is not installed.
    """
    if uri == "none":
        return NoTracker()
    asked = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if find_spec("mlflow") is None:
        if asked is None:
            return NoTracker()
        raise InputError(f"tracking {asked}: MLflow is not installed; pip install 'pretune[mlflow]'")

    from pretune.mlflow_config.mlflow_tracker import MlflowTracker

    return MlflowTracker(asked or sqlite_uri(out))


def sqlite_uri(out: Path) -> str:
    """The default store of a session's folder."""
    return f"{_SQLITE}{out.resolve() / 'mlflow.db'}"


def database(uri: str) -> Path | None:
    """The file of a sqlite URI, made absolute; None for any other store."""
    return Path(uri.removeprefix(_SQLITE)).resolve() if uri.startswith(_SQLITE) else None


def artifacts(uri: str) -> Path | None:
    """Where a sqlite store's artifacts lie: beside it. None where the server decides."""
    path = database(uri)
    return path.parent / "mlartifacts" if path else None


def ui_command(uri: str, port: int = 5000) -> tuple[list[str], dict[str, str]]:
    """The command, and the whole environment to run it in, that serves the page of ``uri`` on this machine.

    One worker and no job runner: half a gigabyte instead of two, and seconds instead of a
    minute. Raises :class:`InputError` when ``uri`` is a server already.
    """
    if uri.startswith(("http://", "https://")):
        raise InputError(f"tracking {uri}: is a server already; open it in a browser")
    path = database(uri)
    if path is not None and not path.exists():
        raise InputError(f"tracking {uri}: no such file; name the --out folder of a session that ran")
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if path is not None:
        command += ["--default-artifact-root", str(artifacts(uri))]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return command, {**os.environ, **quiet}
