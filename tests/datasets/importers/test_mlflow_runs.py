"""Real MLflow stores: whoever logged them, their runs come back as what they state."""

import warnings
from contextlib import contextmanager

import pytest
from sample_trials import sample_trial

from pretune.datasets import schema
from pretune.datasets.importers import mlflow_runs
from pretune.datasets.importers.account import import_files
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.mlflow_runs import MLflowRuns
from pretune.datasets.platform import Platform
from pretune.datasets.store import TrialStore
from pretune.errors import InputError

mlflow = pytest.importorskip("mlflow")
PARAMS = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "tp_size": 1, "bf16": "True"}
NO_SPEED = dict.fromkeys(("tokens_per_s", "tokens_per_s_per_device", "step_time_s"))
MODEL = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512, "block_size": 128}


@contextmanager
def quiet():
    """Inside, MLflow may warn of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def database(tmp_path):
    """An sqlite store, and how to log a run into it: settings, metric histories, how it ends."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with quiet():
        client = mlflow.MlflowClient(uri)
        experiment = client.create_experiment("theirs", artifact_location=(tmp_path / "artifacts").as_uri())

    def log(params, metrics, status="FINISHED"):
        with quiet():
            return written(params, metrics, status)

    def written(params, metrics, status):
        run = client.create_run(experiment, start_time=1_700_000_000_000)
        for name, value in params.items():
            client.log_param(run.info.run_id, name, value)
        for name, readings in metrics.items():
            for step, value in enumerate(readings):
                client.log_metric(run.info.run_id, name, value, step=step)
        if status:
            client.set_terminated(run.info.run_id, status)
        return run.info.run_id

    return uri, log


def only(source, **more):
    (found,) = MLflowRuns(**more).read(source)
    return found


def test_settings_and_steady_speed_of_a_run(database):
    uri, log = database
    speeds = [10.0, 500.0, 1000.0, 1010.0, 990.0]
    run_id = log(
        PARAMS, {"train/tokens_per_second": speeds, "loss": [4.0, 2.5], "system/cpu_percent": [50.0]}
    )
    run = only(uri)
    assert (run.key, run.values["status"]) == (run_id, "ok")
    assert run.values["tokens_per_s"] == 1000.0
    assert (run.values["knob.micro_batch"], run.values["knob.accumulation"]) == (4, 2)
    assert (run.values["workload.precision"], run.values["loss_last"]) == ("bf16", 2.5)
    assert run.values["counter.system/cpu_percent"] == 50.0
    assert run.values["created_at"].timestamp() == 1_700_000_000


@pytest.mark.parametrize(
    ("metrics", "ending", "status", "cause"),
    [
        ({"tokens_per_second": [5.0]}, "FAILED", "crash", "MLflow says FAILED"),
        ({}, "KILLED", "crash", "MLflow says KILLED"),
        ({}, "FINISHED", "crash", "MLflow says FINISHED, but no metric was logged"),
        ({"tokens_per_second": [5.0], "loss": [float("nan")]}, "FINISHED", "diverged", "no finite number"),
    ],
)
def test_a_run_that_failed_is_no_success(database, metrics, ending, status, cause):
    uri, log = database
    log(PARAMS, metrics, ending)
    run = only(uri)
    assert run.values["status"] == status
    assert cause in run.values["cause"]


@pytest.mark.parametrize(
    ("metrics", "ending", "reason"),
    [
        ({"accuracy": [0.5]}, "FINISHED", "no metric known as throughput"),
        ({"step_time": [0.5]}, "FINISHED", "step_time does not say its unit"),
        ({"tokens_per_second": [5.0]}, None, "is RUNNING"),
    ],
)
def test_what_cannot_be_told_is_set_aside(database, metrics, ending, reason):
    uri, log = database
    run_id = log(PARAMS, metrics, ending)
    aside = only(uri)
    assert isinstance(aside, SetAside)
    assert reason in aside.reason
    assert run_id in aside.file


def test_a_run_that_is_half_logged_is_set_aside_until_it_has_ended(tmp_path):
    uri, whole = f"sqlite:///{tmp_path / 'mlflow.db'}", {"train/tokens_per_second": 1000.0, "loss": 2.5}
    with quiet():
        client = mlflow.MlflowClient(uri)
        run_id = client.create_run(client.create_experiment("theirs")).info.run_id
    steps = [
        lambda name=name, value=value: client.log_param(run_id, name, value) for name, value in PARAMS.items()
    ]
    steps += [lambda name=name, v=v: client.log_metric(run_id, name, v) for name, v in whole.items()]
    for step in steps:
        assert isinstance(only(uri), SetAside)
        with quiet():
            step()
    assert isinstance(only(uri), SetAside)
    client.set_terminated(run_id, "FINISHED")
    assert only(uri).values["tokens_per_s"] == 1000.0


def test_the_users_map_names_what_has_no_unit(database):
    uri, log = database
    log(PARAMS, {"step_time": [250.0]})
    told = Mapping(columns={"step_time_s": "step_time"}, units={"step_time_s": "ms"})
    assert only(uri, names=told).values["step_time_s"] == pytest.approx(0.25)


def test_more_runs_than_a_page_are_all_read(database, monkeypatch):
    uri, log = database
    ids = {log({}, {"tokens_per_second": [float(n)]}) for n in range(1, 8)}
    monkeypatch.setattr(mlflow_runs, "PAGE", 2)
    runs = list(MLflowRuns().read(uri))
    assert {run.key for run in runs} == ids
    assert len(runs) == 7


def test_a_database_becomes_trials_once(database, tmp_path):
    uri, log = database
    log(PARAMS | MODEL, {"tokens_per_second": [4096.0]})
    log(PARAMS | MODEL, {}, "FAILED")
    two = {"name": "two", "accelerator": {"name": "A100-80GB"}, "devices_per_node": 2}
    given, store = Given(Platform.from_mapping(two, "test")), TrialStore(tmp_path / "store")
    first = import_files(MLflowRuns(), [uri], given, store)
    again = import_files(MLflowRuns(), [uri], given, store)
    assert (first.taken, first.set_aside) == (2, [])
    assert (again.taken, again.already_there) == (0, 2)
    good = next(trial for trial in store.trials() if trial.ok)
    assert good.step_time_s == pytest.approx(4 * 2 * 2 * 128 / 4096)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of MLflow's with two runs, and the places of their files."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with quiet():
        client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
        experiment = client.create_experiment("old")
        for _ in range(2):
            run = client.create_run(experiment)
            client.log_metric(run.info.run_id, "train_steps_per_second", 4.0)
            client.set_terminated(run.info.run_id)
    return tmp_path / "mlruns"


def test_a_folder_of_mlflow(folder):
    assert [run.values["step_time_s"] for run in MLflowRuns().read(folder)] == pytest.approx([0.25, 0.25])


def test_a_folder_that_is_damaged_is_refused_in_one_line(folder):
    next(folder.glob("*/meta.yaml")).write_bytes(b"name: \x00\n")
    with pytest.raises(InputError, match="MLflow cannot read it") as error:
        list(MLflowRuns().read(folder))
    assert "\n" not in str(error.value)


def test_an_experiment_that_mlflow_leaves_out_is_named(folder, capfd):
    next(path for path in folder.glob("*/meta.yaml") if list(path.parent.glob("*/meta.yaml"))).write_bytes(
        b""
    )
    *runs, aside = MLflowRuns().read(folder)
    assert not runs
    assert "MLflow says: " in aside.reason
    assert "Traceback" not in capfd.readouterr().err


def test_readings_that_are_damaged_cost_their_run(folder, monkeypatch):
    history = mlflow.MlflowClient.get_metric_history
    broken = []

    def read(client, run_id, name):
        if not broken or run_id in broken:
            broken.append(run_id)
            raise ValueError("could not convert string to float")  # as of a line cut off in the file
        return history(client, run_id, name)

    monkeypatch.setattr(mlflow.MlflowClient, "get_metric_history", read)
    found = list(MLflowRuns().read(folder))
    assert sorted(type(each).__name__ for each in found) == ["Run", "SetAside"]


@pytest.mark.parametrize("source", ["sqlite:///nowhere/x.db", "nowhere", "http://127.0.0.1:9"])
def test_what_is_not_there_is_one_line_and_makes_nothing(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        list(MLflowRuns().read(source))
    assert "\n" not in str(error.value)
    assert source in str(error.value)
    assert not list(tmp_path.iterdir())


def test_trials_that_pretune_logged_come_back_as_they_were(tmp_path):
    from pretune.mlflow_config.mlflow_tracker import MlflowTracker

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = MlflowTracker(uri)
    trials = [sample_trial("t000"), sample_trial("t001", status="oom", cause="out of memory", **NO_SPEED)]
    tracker.session_begun("s1", "a session", {})
    for trial in trials:
        tracker.trial_begun(trial.spec)
        tracker.trial_ended(trial, [])
    tracker.session_ended("s1", {}, [], "")
    found = list(MLflowRuns().read(uri))
    runs = {run.values["status"]: run.values for run in found if isinstance(run, Run)}
    assert [aside.reason[:12] for aside in found if isinstance(aside, SetAside)] == ["is a session"]
    for trial in trials:
        row, back = schema.flatten(trial), runs[str(trial.status)]
        kept = ("knob.", "model.", "workload.", "counter.", "software.", "status", "cause", "step_time_s")
        for column, value in row.items():
            if column.startswith((*kept, "tokens_per_s", "loss_", "peak_memory", "window_times_s")):
                assert back.get(column) == value or value in (None, []), column
