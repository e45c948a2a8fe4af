"""The team's setting: a real PostgreSQL, a real MLflow server before it, and eight sessions at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretune.collector.agent import free_port

SETTINGS = Path(__file__).parents[2] / "src" / "pretune" / "mlflow_config" / "environments"
WRITERS, TRIALS = 8, 3
WRITER = """
import pickle, sys
from pathlib import Path
from pretune.mlflow_config import tracker
told, name = tracker(None, Path(".")), sys.argv[1]
trials = pickle.loads(Path(sys.argv[2]).read_bytes())
told.session_begun(name, name, {"seed": 0})
for trial in trials:
    told.trial_begun(trial)
    told.trial_ended(trial, [])
told.session_ended(name, {"speedup": 1.5}, [], "done")
"""


def _postgres() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found else None


@pytest.fixture
def database() -> Iterator[str]:
    """The URI of a database in a PostgreSQL that is started for the test, by a user who is not root."""
    programs = _postgres()
    if programs is None or os.getuid() != 0 or shutil.which("runuser") is None:
        pytest.skip("needs root and PostgreSQL (Debian: postgresql)")
    folder, port = Path(tempfile.mkdtemp(prefix="pretune-pg-")), free_port()
    shutil.chown(folder, "postgres")

    def as_postgres(*command: str) -> None:
        subprocess.run(
            ["runuser", "-u", "postgres", "--", *command], check=True, cwd=folder, capture_output=True
        )

    as_postgres(str(programs / "initdb"), "-D", str(folder / "data"), "-A", "trust")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    as_postgres(
        str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w", "-o", options, "-l", "log", "start"
    )
    try:
        for made in (("createuser", "mlflow"), ("createdb", "-O", "mlflow", "mlflow")):
            as_postgres(str(programs / made[0]), "-h", "127.0.0.1", "-p", str(port), *made[1:])
        yield f"postgresql+psycopg://mlflow@127.0.0.1:{port}/mlflow"
    finally:
        as_postgres(str(programs / "pg_ctl"), "-D", str(folder / "data"), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(database: str, tmp_path: Path) -> Iterator[str]:
    """MLflow's server, with the settings that ship, at places of the test's own."""
    pytest.importorskip("psycopg")
    port = str(free_port())
    mine = {
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_ARTIFACTS_DESTINATION": str(tmp_path / "artifacts"),
        "MLFLOW_HOST": "127.0.0.1",
        "MLFLOW_PORT": port,
        "MLFLOW_WORKERS": "1",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    settings = (SETTINGS / "team-server.env").read_text(encoding="utf-8")
    assert all(name in settings for name in ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"))
    command = [sys.executable, "-m", "mlflow", "--env-file", str(SETTINGS / "team-server.env"), "server"]
    log = (tmp_path / "server.log").open("wb")
    running = subprocess.Popen(  # a session of its own: the server's workers end with it
        command, env={**os.environ, **mine}, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path
    )
    try:
        uri = f"http://127.0.0.1:{port}"
        while running.poll() is None:
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        assert running.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
        yield uri
    finally:
        if running.poll() is None:
            os.killpg(running.pid, 15)
            running.wait()
        log.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_eight_sessions_log_at_once_and_nothing_is_lost_or_doubled(server, tmp_path, make_trial):
    import pickle

    def write(name: str) -> list[str]:
        trials = [make_trial(f"{name}-t{i}", session_id=name) for i in range(TRIALS)]
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(trials))
        return [sys.executable, "-c", WRITER, name, str(tmp_path / f"{name}.pickle")]

    environment = {**os.environ, "MLFLOW_TRACKING_URI": server}
    names = [f"s{i}" for i in range(WRITERS)]
    for _ in range(2):  # the second time as `pretune sync` does: all of it again
        writers = [
            subprocess.Popen(write(name), env=environment, stderr=subprocess.PIPE, text=True)
            for name in names
        ]
        for writer in writers:
            assert writer.communicate(timeout=400)[1] == ""
            assert writer.returncode == 0

    from mlflow import MlflowClient

    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("pretune")
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    kinds = [run.data.tags["pretune.kind"] for run in found]
    assert kinds.count("session") == WRITERS
    assert kinds.count("trial") == WRITERS * TRIALS
    assert {run.info.status for run in found} == {"FINISHED"}
    parents = {run.info.run_id: run.info.run_name for run in found}
    for run in found:
        if run.data.tags["pretune.kind"] == "trial":
            assert parents[run.data.tags["mlflow.parentRunId"]] == run.data.tags["pretune.session_id"]
            windows = client.get_metric_history(run.info.run_id, "window_time_s")
            assert [metric.value for metric in windows] == [0.5, 0.25, 0.25]
