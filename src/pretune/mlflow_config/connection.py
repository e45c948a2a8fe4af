"""One quiet, impatient road to MLflow: every call of pretune's goes through :func:`speaking`."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pretune.errors import TrackingError
from pretune.mlflow_config.settings import EXPERIMENT, artifacts, database

if TYPE_CHECKING:
    from mlflow import MlflowClient

# What the user has set himself wins. A server that is down shall cost seconds, not MLflow's ten minutes.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_CHATTY = ("mlflow", "alembic")


@contextmanager
def speaking(uri: str) -> Iterator[None]:
    """Inside, MLflow is silent and gives up soon, and its failures become :class:`TrackingError`.

    Environment, log levels and warning filters are as before on leaving: the process may
    use MLflow for itself.
    """
    with _environment(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        levels = {name: logging.getLogger(name).level for name in _CHATTY}
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:  # Import: a database driver
            reason = " ".join(str(error).split())[:300]
            raise TrackingError(f"tracking {uri}: {reason}") from error
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextmanager
def _environment() -> Iterator[None]:
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def connect(uri: str) -> tuple[MlflowClient, str]:
    """A client and the id of pretune's experiment, made when it is missing. Call inside :func:`speaking`."""
    from mlflow import MlflowClient

    _knock(uri)
    with _alone(uri):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        return client, found.experiment_id if found else _create_experiment(client, uri)


def _create_experiment(client: MlflowClient, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    place = artifacts(uri)
    try:
        made = client.create_experiment(EXPERIMENT, artifact_location=place.as_uri() if place else None)
        return str(made)
    except MlflowException:
        found = client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            raise
        return str(found.experiment_id)  # another process was first


def _knock(uri: str) -> None:
    """Raises ``OSError`` where a database's port is shut: MLflow itself would try for minutes."""
    parts = urlsplit(uri)
    if not parts.scheme.startswith("http") and parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), timeout=5).close()


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Only one process at a time makes the tables of a fresh sqlite file: MLflow's own migrations race."""
    path = database(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
