import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from pretune.datasets import TrialStore
from pretune.errors import InputError, TrackingError
from pretune.mlflow_config import NoTracker, sync, tracker, ui_command
from pretune.mlflow_config.mlflow_tracker import MlflowTracker


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_the_setting_wins_over_the_environment_and_that_over_the_folder(tmp_path, monkeypatch):
    assert tracker(None, tmp_path).uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere:5000")
    assert tracker(None, tmp_path).uri == "http://somewhere:5000"
    assert tracker("http://elsewhere", tmp_path).uri == "http://elsewhere"
    assert isinstance(tracker("none", tmp_path), NoTracker)
    assert list(tmp_path.iterdir()) == []  # nothing is made before the first word


def test_without_mlflow_only_a_named_place_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("pretune.mlflow_config.settings.find_spec", lambda _: None)
    assert isinstance(tracker(None, tmp_path), NoTracker)
    with pytest.raises(InputError, match=r"pip install 'pretune\[mlflow\]'"):
        tracker("http://elsewhere", tmp_path)


def test_no_tracker_takes_everything_and_keeps_nothing(tmp_path, make_trial):
    nothing = NoTracker()
    assert nothing.session_begun("s1", "a session", {}) is None
    nothing.trial_begun(make_trial("t1").spec)
    nothing.trial_ended(make_trial("t1"), [])
    nothing.fit_begun("fit", {})
    nothing.fit_ended("fit", {}, [], tmp_path)
    nothing.session_ended("s1", {}, [], "")
    assert list(tmp_path.iterdir()) == []


def test_no_page_for_what_is_a_server_or_is_not_there(tmp_path):
    with pytest.raises(InputError, match="open it in a browser"):
        ui_command("http://127.0.0.1:5000")
    with pytest.raises(InputError, match="no such file"):
        ui_command(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{}", "postgresql://someone@127.0.0.1:{}/runs"])
def test_a_server_that_is_down_costs_seconds_and_a_tracking_error(uri, tmp_path, make_trial):
    import mlflow  # noqa: F401  (not what is timed below)

    down = tracker(uri.format(free_port()), tmp_path)
    tell = [
        lambda: down.session_begun("s1", "a session", {}),
        lambda: down.trial_ended(make_trial("t1"), []),
        lambda: down.session_ended("s1", {}, [], ""),
    ]
    began = time.monotonic()
    for call in tell:
        with pytest.raises(TrackingError, match=r"127\.0\.0\.1"):
            call()
    assert time.monotonic() - began < 10
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_a_database_that_is_damaged_is_a_tracking_error(tmp_path):
    (tmp_path / "mlflow.db").write_text("this is no database, and MLflow must not get past it")
    with pytest.raises(TrackingError, match="not a database"):
        tracker(None, tmp_path).session_begun("s1", "a session", {})


@pytest.mark.slow
def test_sync_completes_what_a_server_missed_and_the_page_shows_it(out, make_trial):
    """The server is the one that ``pretune ui`` starts; it comes up after the first session call failed."""
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    store = TrialStore(out / "trials")
    trials = [make_trial("t1"), make_trial("t2", "oom"), make_trial("other", session_id="s2")]
    store.append(trials)
    client = MlflowTracker(uri)
    with pytest.raises(TrackingError):
        client.trial_ended(trials[0], [])

    command, environment = ui_command(f"sqlite:///{out / 'mlflow.db'}", port)
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_for(f"{uri}/health")
            client.trial_ended(trials[0], [])
            log = out / "log.txt"
            log.write_text("all ranks ended")
            for _ in range(2):
                assert sync(store, "s1", client, lambda _: [log]) == 2
            assert logged(uri) == {"t1": "FINISHED", "t2": "FAILED"}
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def wait_for(url: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"{url} did not answer")


def logged(uri: str) -> dict[str, str]:
    """Trial id -> status of every trial run that the server's own API lists; no id twice."""
    body = {"experiment_ids": ["1"], "filter": "tags.`pretune.kind` = 'trial'"}
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/runs/search",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        runs = json.load(answer)["runs"]
    found = [
        (tag["value"], run["info"]["status"])
        for run in runs
        for tag in run["data"]["tags"]
        if tag["key"] == "pretune.trial_id"
    ]
    assert len(found) == len(dict(found))
    return dict(found)
