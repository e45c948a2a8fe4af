import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pretune.datasets import Trial, TrialStore
from pretune.mlflow_config import Tracker, tracker


@pytest.fixture
def mlflow_tracker(out: Path) -> Tracker:
    return tracker(None, out)


@pytest.fixture
def runs(out: Path) -> Callable[..., list]:
    """Every run in the database that has these tags."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{out / 'mlflow.db'}")

    def find(kind: str) -> list:
        experiment = client.get_experiment_by_name("pretune")
        return client.search_runs([experiment.experiment_id], f"tags.`pretune.kind` = '{kind}'")

    find.client = client  # type: ignore[attr-defined]
    return find


def tell_session(mlflow_tracker: Tracker, trials: list[Trial], note: Path) -> str | None:
    run_id = mlflow_tracker.session_begun("s1", "tiny-gpt on two-ranks", {"budget_trials": 2, "none": None})
    for trial in trials:
        mlflow_tracker.trial_begun(trial.spec)
        mlflow_tracker.trial_ended(trial, [note])
    mlflow_tracker.session_ended("s1", {"speedup": 1.25}, [note], "# Best\nZeRO-1")
    return run_id


def test_a_session_is_a_parent_run_with_its_trials_below(mlflow_tracker, runs, make_trial, tmp_path):
    note = tmp_path / "ds_config.json"
    note.write_text("{}")
    run_id = tell_session(mlflow_tracker, [make_trial("t1"), make_trial("t2", "oom")], note)

    (session,) = runs("session")
    assert session.info.run_id == run_id
    assert session.info.run_name == "tiny-gpt on two-ranks"
    assert session.info.status == "FINISHED"
    assert session.data.params == {"budget_trials": "2"}
    assert session.data.metrics["speedup"] == 1.25
    assert session.data.tags["mlflow.note.content"] == "# Best\nZeRO-1"

    trials = {run.data.tags["pretune.trial_id"]: run for run in runs("trial")}
    assert {run.data.tags["mlflow.parentRunId"] for run in trials.values()} == {run_id}
    assert trials["t1"].info.status == "FINISHED"
    assert trials["t1"].info.run_name == "t1, ZeRO-1, micro batch 4 x 2"
    assert trials["t1"].data.params["knob.zero_stage"] == "1"
    assert trials["t1"].data.params["model.hidden_size"] == "64"
    assert trials["t1"].data.metrics["tokens_per_s"] == 3072.0
    assert trials["t1"].data.metrics["counter.net.sent_bytes"] == 1e6
    assert "counter.absent" not in trials["t1"].data.metrics
    assert trials["t2"].info.status == "FAILED"
    assert trials["t2"].data.tags["status"] == "oom"
    assert "rank 1" in trials["t2"].data.tags["cause"]
    assert "tokens_per_s" not in trials["t2"].data.metrics
    for run in (session, *trials.values()):
        assert [file.path for file in runs.client.list_artifacts(run.info.run_id)] == ["ds_config.json"]
    assert (tmp_path / "mlartifacts").is_dir()


def test_the_sessions_course_is_a_metric_with_a_step_for_every_trial(mlflow_tracker, runs, make_trial, out):
    mlflow_tracker.session_begun("s1", "a session", {})
    speeds = [1000.0, None, 3000.0, 2000.0]
    told = [
        make_trial(f"t{n}", tokens_per_s=2 * speed, tokens_per_s_per_device=speed)
        if speed
        else make_trial(f"t{n}", "oom")
        for n, speed in enumerate(speeds)
    ]
    control = make_trial("v1", purpose="verify", tokens_per_s=9e9, tokens_per_s_per_device=4.5e9)
    for trial in [*told[:3], control]:
        mlflow_tracker.trial_ended(trial, [])
    again = tracker(None, out)  # a resumed session tells all of them again
    for trial in [*told, control]:
        again.trial_ended(trial, [])
    run_id = runs("session")[0].info.run_id
    for name, wanted in (
        ("searched", [(0, 1000), (2, 3000), (3, 2000)]),
        ("best_so_far", [(0, 1000), (2, 3000), (3, 3000)]),
    ):
        history = runs.client.get_metric_history(run_id, f"{name}_tokens_per_s_per_device")
        assert [(metric.step, metric.value) for metric in history] == wanted


def test_runs_of_every_kind_are_found_by_the_same_tags(mlflow_tracker, runs, make_trial):
    trial = make_trial("t1")
    params = {"platform": "two-ranks", "model": "tiny-gpt", "workload": trial.workload.name}
    mlflow_tracker.session_begun("s1", "a session", params)
    assert runs("session")[0].data.tags["status"] == "running"
    mlflow_tracker.trial_ended(trial, [])
    mlflow_tracker.fit_begun("s1", params)
    mlflow_tracker.session_ended("s1", {"best_tokens_per_s_per_device": 1536.0}, [], "")
    experiment = runs.client.get_experiment_by_name("pretune").experiment_id
    wanted = "tags.platform = 'two-ranks' and tags.model = 'tiny-gpt' and tags.`pretune.session_id` = 's1'"
    found = runs.client.search_runs([experiment], wanted)
    assert {run.data.tags["pretune.kind"] for run in found} == {"session", "trial", "fit"}
    ok = runs.client.search_runs([experiment], f"{wanted} and tags.status = 'ok'")
    assert {run.data.tags["pretune.kind"] for run in ok} == {"session", "trial"}
    mlflow_tracker.session_begun("s1", "a session", {**params, "platform": "another"})
    assert runs("session")[0].data.params["platform"] == "two-ranks"


def test_window_times_are_a_history_in_order_and_in_real_time(mlflow_tracker, runs, make_trial):
    trial = make_trial("t1")
    mlflow_tracker.trial_ended(trial, [])
    (run,) = runs("trial")
    history = runs.client.get_metric_history(run.info.run_id, "window_time_s")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.5), (1, 0.25), (2, 0.25)]
    began = round(trial.created_at.timestamp() * 1000)
    assert [metric.timestamp - began for metric in history] == [500, 750, 1000]
    assert run.info.end_time - run.info.start_time == 12_000


def test_what_is_told_twice_is_logged_once(mlflow_tracker, runs, make_trial, tmp_path, out):
    note = tmp_path / "note.txt"
    note.write_text("x")
    trials = [make_trial("t1"), make_trial("t2", "crash")]
    first = tell_session(mlflow_tracker, trials, note)
    again = tracker(f"sqlite:///{out / 'mlflow.db'}", out)  # as a resumed session: another object
    assert tell_session(again, trials, note) == first

    assert len(runs("session")) == 1
    assert len(runs("trial")) == 2
    (ok,) = [run for run in runs("trial") if run.data.tags["status"] == "ok"]
    assert len(runs.client.get_metric_history(ok.info.run_id, "window_time_s")) == 3
    assert len(runs.client.get_metric_history(runs("session")[0].info.run_id, "speedup")) == 1


def test_a_trial_that_was_half_logged_is_completed(mlflow_tracker, runs, make_trial, monkeypatch):
    trial = make_trial("t1")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mlflow_tracker, "_log_files", die)
        with pytest.raises(KeyboardInterrupt):
            mlflow_tracker.trial_ended(trial, [])
    assert runs("trial")[0].info.status == "RUNNING"

    mlflow_tracker.trial_ended(trial, [])
    (run,) = runs("trial")
    assert run.info.status == "FINISHED"
    assert len(runs.client.get_metric_history(run.info.run_id, "window_time_s")) == 3


def test_a_trial_that_never_ended_is_closed_with_its_session(mlflow_tracker, runs, make_trial):
    mlflow_tracker.session_begun("s1", "a session", {})
    mlflow_tracker.trial_begun(make_trial("lost").spec)
    mlflow_tracker.session_ended("s1", {}, [], "")
    assert runs("trial")[0].info.status == "KILLED"


def test_a_resumed_session_may_end_with_other_figures(mlflow_tracker, runs):
    mlflow_tracker.session_begun("s1", "a session", {"budget_trials": 6})
    mlflow_tracker.session_ended("s1", {"speedup": 1.5}, [], "first")
    mlflow_tracker.session_begun("s1", "a session", {"budget_trials": 12})
    assert runs("session")[0].info.status == "RUNNING"
    mlflow_tracker.session_ended("s1", {"speedup": 1.25}, [], "second")
    (run,) = runs("session")
    assert run.data.metrics["speedup"] == 1.25
    assert run.data.tags["mlflow.note.content"] == "second"


def test_the_history_is_logged_as_the_dataset_of_a_session(mlflow_tracker, runs, make_trial, tmp_path):
    store = TrialStore(tmp_path / "history")
    store.append([make_trial("h1"), make_trial("h2")])
    mlflow_tracker.session_begun("s1", "a session", {"history": store.root})
    first = runs("session")[0].inputs.dataset_inputs[0].dataset
    store.append(make_trial("h3"))
    mlflow_tracker.session_begun("s2", "another", {"history": store.root})
    second = next(r for r in runs("session") if r.info.run_name == "another").inputs.dataset_inputs[0].dataset
    assert json.loads(first.profile) == {"trials": 2, "files": 1}
    assert first.digest != second.digest


def test_a_fit_on_more_trials_is_another_run_and_the_same_fit_is_not(mlflow_tracker, runs):
    for trials in (60, 60, 66):
        mlflow_tracker.fit_begun("two-ranks", {"trials": trials})
    assert sorted(run.data.params["trials"] for run in runs("fit")) == ["60", "66"]
    assert {run.info.run_name for run in runs("fit")} == {"surrogate of two-ranks"}


def test_an_experiment_that_another_process_made_first_is_taken(out):
    from mlflow import MlflowClient

    from pretune.mlflow_config.connection import _create_experiment

    uri = f"sqlite:///{out / 'mlflow.db'}"
    client = MlflowClient(uri)
    assert _create_experiment(client, uri) == _create_experiment(client, uri)


def test_the_run_that_the_user_has_open_is_not_disturbed(mlflow_tracker, make_trial, tmp_path):
    import mlflow

    level = logging.getLogger("mlflow").level
    before = dict(os.environ)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    try:
        with mlflow.start_run(run_name="mine") as mine:
            mlflow_tracker.trial_ended(make_trial("t1"), [])
            assert mlflow.active_run().info.run_id == mine.info.run_id
            mlflow.log_param("after", 1)
        assert mlflow.get_run(mine.info.run_id).data.params == {"after": "1"}
        assert mlflow.get_run(mine.info.run_id).data.metrics == {}
    finally:
        mlflow.set_tracking_uri(None)
    assert logging.getLogger("mlflow").level == level
    assert {name for name in os.environ if name not in before and name.startswith("MLFLOW_")} <= {
        "MLFLOW_TRACKING_URI"  # by set_tracking_uri above
    }


SESSION = """
import sys
from pathlib import Path
from pretune.mlflow_config import tracker
t = tracker(None, Path(sys.argv[1]))
t.session_begun(sys.argv[2], sys.argv[2], {})
"""


@pytest.mark.slow
def test_two_sessions_that_meet_at_a_fresh_database_both_arrive_and_say_nothing(tmp_path):
    command = [sys.executable, "-c", SESSION, str(tmp_path)]
    meeting = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in ("s1", "s2")
    ]
    for process in meeting:
        assert process.communicate(timeout=120) == ("", "")
        assert process.returncode == 0

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("pretune")
    assert {r.info.run_name for r in client.search_runs([experiment.experiment_id])} == {"s1", "s2"}
