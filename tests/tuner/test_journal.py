"""What a tracking server missed is told again, all of it, from wherever the session's folder is."""

from __future__ import annotations

import warnings

import pytest

from pretune.errors import TrackingError
from pretune.mlflow_config import NoTracker
from pretune.mlflow_config.mlflow_tracker import MlflowTracker
from pretune.mlflow_config.settings import sqlite_uri
from pretune.tuner.campaign import Campaign
from pretune.tuner.job import JobSpec
from pretune.tuner.journal import retell
from pretune.tuner.runner import Watcher
from pretune.tuner.search import Search
from pretune.tuner.session import TuningSession

METHODS = ("session_begun", "session_ended", "fit_begun", "fit_ended")


class Told(NoTracker):
    """Remembers what it is told of sessions and fits: the method, and all of its arguments."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if name not in METHODS:
            return super().__getattribute__(name)
        return lambda *arguments: self.calls.append((name, *arguments))


class Down(NoTracker):
    def session_begun(self, session_id, name, params):
        raise TrackingError("tracking http://nowhere: connection refused")


def tune(job, out, tracker):
    return TuningSession(job, out, tracker, Watcher()).run()


def campaign(job, out, tracker):
    return Campaign(job, out, 3, tracker, Watcher()).run()


@pytest.fixture
def in_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_the_folder")
@pytest.mark.parametrize("run", [tune, campaign])
def test_a_server_that_was_down_is_told_what_one_that_was_up_heard(run, write_job, tmp_path, monkeypatch):
    job = JobSpec.from_yaml(write_job(strategy="transfer", budget={"trials": 4}))
    out = (tmp_path / "out").relative_to(tmp_path)
    run(job, out, Down())
    heard, later = Told(), Told()
    run(job, out, heard)  # the same session, whose trials are all stored
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    session_id = heard.calls[0][1]
    assert retell(tmp_path / "out", session_id, later, lambda: 7) == (7, [])
    absolute = [tuple(rooted(argument, tmp_path) for argument in call) for call in heard.calls]
    assert later.calls == absolute
    assert [name for name, *_ in later.calls] == (
        ["session_begun", "fit_begun", "fit_ended", "session_ended"]
        if run is tune
        else ["session_begun", "session_ended"]
    )


def rooted(argument, root):
    """Paths that were told relative to ``root``, made absolute."""
    if isinstance(argument, list):
        return [root / path for path in argument]
    return argument if isinstance(argument, str | dict) else root / argument


@pytest.mark.slow
def test_the_page_of_a_synced_session_has_its_parameters_its_surrogate_and_its_files(write_job, tmp_path):
    job = JobSpec.from_yaml(write_job(strategy="transfer", budget={"trials": 2}))
    out = tmp_path / "out"
    answer = tune(job, out, Down())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of MLflow's own libraries
        retell(out, answer.state.id, MlflowTracker(sqlite_uri(out)), lambda: 0)
        from mlflow import MlflowClient

        client = MlflowClient(sqlite_uri(out))
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        session, fit = (
            client.search_runs(experiments, f"tags.`pretune.kind` = '{kind}'")[0]
            for kind in ("session", "fit")
        )
        files = {file.path for file in client.list_artifacts(session.info.run_id)}
    assert session.info.status == "FINISHED"
    assert session.info.run_name == "job"
    assert session.data.params["strategy"] == "transfer"
    assert files == {"best.json", "ds_config.json", "launch.sh"}
    assert fit.data.tags["mlflow.parentRunId"] == session.info.run_id
    assert fit.data.params["trials"] == "2"
    assert len(fit.outputs.model_outputs) == 1


def test_files_that_are_gone_are_named(write_job, tmp_path):
    job = JobSpec.from_yaml(write_job())
    out = tmp_path / "out"
    answer = tune(job, out, NoTracker())
    (out / "launch.sh").unlink()
    told = Told()
    assert retell(out, answer.state.id, told, lambda: 0) == (0, ["launch.sh"])
    name, _, _, files, _ = told.calls[-1]
    assert name == "session_ended"
    assert files == [out / "best.json", out / "ds_config.json"]


def test_a_session_that_has_not_ended_is_not_closed(write_job, tmp_path, monkeypatch):
    job = JobSpec.from_yaml(write_job())
    tune(job, tmp_path / "out", NoTracker())

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune(job, tmp_path / "out", NoTracker())
    told = Told()
    retell(tmp_path / "out", "s1", told, lambda: 0)
    assert [name for name, *_ in told.calls] == ["session_begun"]
