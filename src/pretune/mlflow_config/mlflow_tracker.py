"""The MLflow tracker: a session is a parent run; its trials and fits are the children."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.datasets.trial import StatedTrial, Trial, TrialSpec
from pretune.mlflow_config import flavour, layout, registry
from pretune.mlflow_config.base import Tracker
from pretune.mlflow_config.connection import connect, speaking
from pretune.mlflow_config.history import history_dataset

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_MOST_RUNS = 50_000  # of one search: the server's limit
_LOGGED = ("FINISHED", "FAILED")
_PARAMS_PER_CALL, _METRICS_PER_CALL = 100, 1000  # the server's limits for one batch


class MlflowTracker(Tracker):
    """Logs to any MLflow tracking URI. Connects at the first call.

    Runs are found by their tags, so a resumed session, a second telling and ``sync`` all
    reach the same runs. It uses MLflow's client and never its active run: a run that the
    process has open for itself is not touched. Every method raises :class:`TrackingError`
    when the server does not take what it is told.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._session_id: str | None = None
        self._fits: dict[str, str] = {}
        self._run_ids: dict[tuple[str, ...], str] = {}
        self._searched: dict[str, int] = {}  # trials of a session's search that ended

    def __repr__(self) -> str:
        return f"MlflowTracker({self.uri!r})"

    # -- sessions -----------------------------------------------------------------
    def session_begun(self, session_id: str, name: str, params: Mapping[str, Any]) -> str | None:
        self._session_id = session_id
        with speaking(self.uri):
            run = self._session(session_id, name)
            self._client.update_run(run.info.run_id, status="RUNNING", name=name)
            self._log_params(run, layout.text(params))
            self._log_history(run, params)
            self._set_tags(run, {"status": "running", **layout.shared_tags(params)})
            return str(run.info.run_id)

    def session_ended(
        self, session_id: str, metrics: Mapping[str, float], files: list[Path], note: str
    ) -> None:
        with speaking(self.uri):
            run = self._session(session_id)
            self._log_metrics_now(run, metrics)
            self._log_files(run, files)
            told = {layout.NOTE: note[: layout.NOTE_LIMIT], "status": layout.session_status(metrics)}
            self._set_tags(run, told)
            for orphan in self._find(**{layout.KIND: "trial", layout.SESSION_ID: session_id}):
                if orphan.info.status == "RUNNING":  # begun by a session that was killed, and never ended
                    self._client.set_terminated(orphan.info.run_id, "KILLED")
            self._client.set_terminated(run.info.run_id, "FINISHED")

    def _session(self, session_id: str, name: str | None = None) -> Run:
        tags = {layout.KIND: "session", layout.SESSION_ID: session_id}
        return self._run(tags, name or f"session {session_id}")

    # -- trials -------------------------------------------------------------------
    def trial_begun(self, spec: TrialSpec) -> None:
        with speaking(self.uri):
            self._trial(spec, time.time())

    def trial_ended(self, trial: Trial, files: list[Path]) -> None:
        with speaking(self.uri):
            began = trial.created_at.timestamp()
            run = self._trial(trial, began)
            if run.info.status in _LOGGED:
                return
            self._log_params(run, layout.trial_params(trial))
            self._log_trial_metrics(run, trial, began)
            self._log_files(run, files)
            software = {f"software.{name}": version for name, version in trial.software.items()}
            self._set_tags(run, {"status": str(trial.status), "cause": trial.cause, **software})
            if trial.session_id is not None and trial.purpose == "search":
                self._log_progress(trial.session_id, trial, began)
            status = "FINISHED" if trial.ok else "FAILED"
            # last, since it says that all of the above was taken
            ended = began + (trial.wall_s or 0.0)
            self._client.set_terminated(run.info.run_id, status, end_time=_milliseconds(ended))

    def _trial(self, spec: StatedTrial, began: float) -> Run:
        tags = {layout.KIND: "trial", layout.TRIAL_ID: spec.trial_id}
        more = layout.trial_tags(spec)
        if spec.session_id is not None:
            more[layout.PARENT] = self._session(spec.session_id).info.run_id
        return self._run(tags, layout.trial_name(spec), more, began)

    def _log_trial_metrics(self, run: Run, trial: Trial, began: float) -> None:
        """Times come from the trial and not from the clock: told again, a row is the same row."""
        from mlflow.entities import Metric

        ended = _milliseconds(began + (trial.wall_s or 0.0))
        rows = [Metric(name, value, ended, 0) for name, value in layout.trial_metrics(trial).items()]
        at = began
        for step, seconds in enumerate(trial.window_times_s):
            at += seconds
            rows.append(Metric(layout.WINDOW_TIME, seconds, _milliseconds(at), step))
        for first in range(0, len(rows), _METRICS_PER_CALL):
            self._client.log_batch(run.info.run_id, metrics=rows[first : first + _METRICS_PER_CALL])

    def _log_progress(self, session_id: str, trial: Trial, began: float) -> None:
        """The session's course on its own run: a step for every trial of the search that ended."""
        from mlflow.entities import Metric

        parent = self._session(session_id)
        if session_id not in self._searched:
            told = {layout.KIND: "trial", layout.SESSION_ID: session_id, "purpose": "search"}
            self._searched[session_id] = sum(run.info.status in _LOGGED for run in self._find(**told))
        step, ended = self._searched[session_id], _milliseconds(began + (trial.wall_s or 0.0))
        if trial.tokens_per_s_per_device:
            speed = trial.tokens_per_s_per_device
            best = max(speed, parent.data.metrics.get(layout.BEST, 0.0))
            rows = [Metric(layout.SEARCHED, speed, ended, step), Metric(layout.BEST, best, ended, step)]
            self._client.log_batch(parent.info.run_id, metrics=rows)
        self._searched[session_id] = step + 1

    # -- fits ---------------------------------------------------------------------
    def fit_begun(self, name: str, params: Mapping[str, Any]) -> None:
        self._fits[name] = layout.digest(params)
        with speaking(self.uri):
            run = self._fit(name)
            self._log_params(run, layout.text(params))
            self._log_history(run, params)
            self._set_tags(run, layout.shared_tags(params))

    def fit_ended(self, name: str, metrics: Mapping[str, float], files: list[Path], model: Path) -> None:
        with speaking(self.uri):
            run = self._fit(name)
            if run.info.status in _LOGGED:
                return
            self._log_metrics_now(run, metrics)
            self._log_files(run, files)
            described = {layout.NOTE: layout.card_note(files)}
            self._set_tags(run, described)
            if run.outputs is None or not run.outputs.model_outputs:
                model_id = flavour.log_model(self._client, run, model, described | {layout.FIT: name})
            else:
                model_id = str(run.outputs.model_outputs[0].model_id)
            held_out = [file for file in files if file.name == registry.PREDICTIONS]
            if self._session_id is None and held_out:  # what a session learned is of its own target alone
                registry.register(self._client, run, name, model_id, held_out[0])
            self._client.set_terminated(run.info.run_id, "FINISHED")

    def _fit(self, name: str) -> Run:
        tags, more = {layout.KIND: "fit", layout.FIT: name, layout.FIT_DIGEST: self._fits[name]}, {}
        if self._session_id is not None:
            tags[layout.SESSION_ID] = self._session_id
            more[layout.PARENT] = self._session(self._session_id).info.run_id
        return self._run(tags, f"surrogate of {name}", more)

    # -- runs ---------------------------------------------------------------------
    @cached_property
    def _connection(self) -> tuple[MlflowClient, str]:
        return connect(self.uri)

    @property
    def _client(self) -> MlflowClient:
        return self._connection[0]

    def _find(self, **tags: str) -> list[Run]:
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        return list(self._client.search_runs([self._connection[1]], wanted, max_results=_MOST_RUNS))

    def _run(
        self,
        tags: dict[str, str],
        name: str,
        more: Mapping[str, str] | None = None,
        began: float | None = None,
    ) -> Run:
        """The run with these tags; made, with ``more`` tags, when there is none."""
        key = tuple(tags.values())
        if key not in self._run_ids:
            found = self._find(**tags)
            run = found[-1] if found else self._create({**tags, **(more or {})}, name, began)
            self._run_ids[key] = run.info.run_id
        return self._client.get_run(self._run_ids[key])

    def _create(self, tags: dict[str, str], name: str, began: float | None) -> Run:
        start = _milliseconds(time.time() if began is None else began)
        tags = {"mlflow.source.name": "pretune", **tags}
        return self._client.create_run(self._connection[1], start_time=start, tags=tags, run_name=name)

    def _log_params(self, run: Run, params: dict[str, str]) -> None:
        """A parameter keeps its first value: MLflow refuses another, and a resumed session may differ."""
        from mlflow.entities import Param

        rows = [Param(name, value) for name, value in params.items() if name not in run.data.params]
        for first in range(0, len(rows), _PARAMS_PER_CALL):
            self._client.log_batch(run.info.run_id, params=rows[first : first + _PARAMS_PER_CALL])

    def _log_metrics_now(self, run: Run, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if run.data.metrics.get(layout.metric_name(name)) != value:
                self._client.log_metric(run.info.run_id, layout.metric_name(name), value)

    def _log_files(self, run: Run, files: list[Path]) -> None:
        for path in files:
            if path.is_dir():
                self._client.log_artifacts(run.info.run_id, str(path), path.name)
            elif path.exists():
                self._client.log_artifact(run.info.run_id, str(path))

    def _log_history(self, run: Run, params: Mapping[str, Any]) -> None:
        dataset = history_dataset(params.get("history"))
        if dataset is not None and not (run.inputs and run.inputs.dataset_inputs):
            self._client.log_inputs(run.info.run_id, [dataset])

    def _set_tags(self, run: Run, tags: Mapping[str, str | None]) -> None:
        from mlflow.entities import RunTag

        rows = [RunTag(name, value) for name, value in tags.items() if value is not None]
        self._client.log_batch(run.info.run_id, tags=rows)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
