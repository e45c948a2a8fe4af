"""Runs of an MLflow server, database or folder, whoever logged them."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pretune.datasets import schema
from pretune.datasets.importers import aliases
from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.mapping import Mapping, typed
from pretune.datasets.importers.tracked import Stated, ended, is_measure, stated, steady
from pretune.datasets.trial import Status
from pretune.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

PAGE = 1000  # runs or experiments asked for at once
# a server that does not answer shall cost seconds, not MLflow's minutes; a folder is still read
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
# how pretune's tracker logs a trial (mlflow_config.layout, which may not be imported from here)
_KIND, _WINDOWS = "pretune.kind", "window_time_s"
_TAGS = {"platform": "platform.name", "framework": "framework", "status": "status", "cause": "cause"}
_RUNNING = ("RUNNING", "SCHEDULED")


class MLflowRuns(Importer):
    """All runs of a tracking URI (``sqlite:///x.db``, ``http://host:5000``), a database file or a folder.

    A speed that was logged many times is the median of its readings after the first two; other metrics, those
    of the system too (``counter.system/*``), are their last reading. What pretune logged itself comes back as
    it was. Runs that have not ended are set aside, since a trial is not changed once it is stored.
    """

    name: ClassVar[str] = "mlflow"
    reads: ClassVar[str] = "the runs of an MLflow server, database or folder"
    fills: ClassVar[tuple[str, ...]] = (
        *aliases.FILLS,
        *("status", "cause", "created_at", "framework", "platform.name", "counter.*", "software.*"),
    )
    maps: ClassVar[bool] = True

    def __init__(self, names: Mapping | None = None) -> None:
        self.names = names

    def sources(self, path: Path | str) -> Iterable[Path | str]:
        return [path]

    def read(self, path: Path | str) -> Iterator[Run | SetAside]:
        server = _Server(_uri(path))
        for run in server.runs():
            try:
                yield self._run(server, run)
            except InputError as error:  # of this run's own readings
                yield SetAside(f"{server.uri} run {run.info.run_id}", None, str(error))
        for said in server.said:  # as of an experiment whose files are damaged, which it leaves out
            yield SetAside(server.uri, None, f"MLflow says: {said}")

    def _run(self, server: _Server, run: MlflowRun) -> Run | SetAside:
        file = f"{server.uri} run {run.info.run_id}"
        kind, state = run.data.tags.get(_KIND), str(run.info.status)
        if kind not in (None, "trial"):
            return SetAside(file, None, f"is a {kind} of pretune's, no run of a configuration")
        if state in _RUNNING:
            return SetAside(file, None, f"is {state}; import it when it has ended, or end it in MLflow")
        found = _own(server, run) if kind else self._foreign(server, run)
        if not kind:
            status = Status.OK if state == "FINISHED" else Status.CRASH
            end = ended(found, status, f"MLflow says {state}", bool(run.data.metrics))
            if isinstance(end, str):
                return SetAside(file, None, end)
            found.values |= end
        found.values |= _began(run)
        return Run(
            None, str(run.info.run_id), found.values, [f"run {run.info.run_id}: {odd}" for odd in found.odd]
        )

    def _foreign(self, server: _Server, run: MlflowRun) -> Stated:
        metrics = dict(run.data.metrics)
        for name in metrics:
            if is_measure(name, self.names):
                metrics[name] = steady(server.history(run, name))
        found = stated({**run.data.params, **metrics}, self.names)
        found.odd += [f"{name} does not say its unit; left out" for name in found.unread if found.measured]
        return found


def _own(server: _Server, run: MlflowRun) -> Stated:
    """A trial as pretune's tracker logs it, by the columns' own names."""
    tags = run.data.tags
    told = {column: tags[tag] for tag, column in _TAGS.items() if tag in tags}
    told |= {name: value for name, value in tags.items() if name.startswith("software.")}
    told |= {name: v for name, v in (run.data.params | run.data.metrics).items() if name != _WINDOWS}
    found = Stated()
    for name, value in told.items():
        if name in schema.core_schema().names or name.startswith(tuple(schema.OPEN.values())):
            try:
                found.values[name] = typed(name, value)
            except ValueError:
                found.odd.append(f"{name}: {str(value)[:40]!r} is not what it should be; left out")
    if _WINDOWS in run.data.metrics:
        found.values["window_times_s"] = server.history(run, _WINDOWS)
    found.values["source"] = "pretune"
    return found


def _began(run: MlflowRun) -> dict[str, datetime]:
    at = run.info.start_time
    return {"created_at": datetime.fromtimestamp(at / 1000, UTC)} if at else {}


class _Server:
    """What is asked of MLflow: page by page, so that a hundred thousand runs are never in memory at once."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.said: list[str] = []  # warnings
        with _speaking(uri):
            from mlflow import MlflowClient

            self.client: MlflowClient = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def runs(self) -> Iterator[MlflowRun]:
        for experiment in self._pages(self.client.search_experiments):
            yield from self._pages(partial(self.client.search_runs, [experiment.experiment_id]))

    def history(self, run: MlflowRun, name: str) -> list[float]:
        with _speaking(self.uri):
            readings = self.client.get_metric_history(run.info.run_id, name)
        return [metric.value for metric in sorted(readings, key=lambda m: (m.step, m.timestamp))]

    def _pages(self, ask: Callable[..., Any]) -> Iterator[Any]:
        token = None
        while True:
            with _speaking(self.uri) as said:
                page = ask(max_results=PAGE, page_token=token)
            self.said += said
            yield from page
            token = page.token
            if not token:
                return


def _uri(path: Path | str) -> str:
    """The tracking URI; a database or folder must be there, since MLflow would make an empty one."""
    if "://" in str(path):
        place = str(path).partition(":///")[2] if str(path).startswith("sqlite:") else None
        if place and not Path(place).is_file():
            raise InputError(f"{path}: there is no such database; check the path")
        return str(path)
    local = Path(path)
    if not local.exists():
        raise InputError(f"{path}: there is no such database or folder; give a tracking URI or mlruns")
    return f"sqlite:///{local.absolute()}" if local.is_file() else local.absolute().as_uri()


class _Heard(logging.Handler):
    """Keeps what is said to the root logger, each in one line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(" ".join(record.getMessage().split())[:200])


@contextmanager
def _speaking(uri: str) -> Iterator[list[str]]:
    """Inside, MLflow is quiet and impatient, its warnings are kept, and its failures become one line."""
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    chatty = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in chatty]
    heard = _Heard()
    logging.getLogger().addHandler(heard)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in chatty:
                logger.setLevel(logging.ERROR)
            yield heard.said
    except ImportError as error:
        raise InputError(f"{uri}: reading it needs MLflow ({error}); pip install 'pretune[mlflow]'") from None
    except Exception as error:  # of a damaged folder also what its YAML or its numbers raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{uri}: MLflow cannot read it ({reason}); check the tracking URI") from None
    finally:
        logging.getLogger().removeHandler(heard)
        for name in added:
            os.environ.pop(name, None)
        for logger, level in zip(chatty, levels, strict=True):
            logger.setLevel(level)
