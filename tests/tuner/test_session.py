from __future__ import annotations

import json
import math
import subprocess
import time

import pytest

from pretune.collector.launchers.hosts import LocalLauncher
from pretune.collector.launchers.replay import ReplayLauncher
from pretune.datasets import TrialStore
from pretune.errors import InputError, TrackingError
from pretune.mlflow_config import NoTracker
from pretune.model import TransferSurrogate
from pretune.tuner.budget import Budget, Spending, in_words
from pretune.tuner.job import JobSpec
from pretune.tuner.runner import Watcher
from pretune.tuner.session import TuningSession, open_session


class Notes(Watcher):
    def __init__(self):
        self.notes, self.begun_ids, self.waited = [], [], 0

    def note(self, text):
        self.notes.append(text)

    def begun(self, row):
        self.begun_ids.append(row.spec.trial_id)

    def waiting(self, _row):
        self.waited += 1


class Told(NoTracker):
    """A tracker that remembers its calls, and fails from the n-th on."""

    def __init__(self, fails_from=10**9):
        self.calls, self.fails_from = [], fails_from

    def _told(self, name, what):
        self.calls.append((name, what))
        if len(self.calls) >= self.fails_from:
            raise TrackingError("tracking http://nowhere: connection refused")

    def session_begun(self, session_id, name, params):
        self._told("session_begun", (session_id, name, params))
        return f"run-of-{name}"

    def session_ended(self, session_id, metrics, files, note):
        self._told("session_ended", (metrics, files, note))

    def fit_begun(self, name, params):
        self._told("fit_begun", (name, params))

    def fit_ended(self, name, metrics, files, model):
        self._told("fit_ended", (name, metrics, files, model))

    def trial_begun(self, spec):
        self._told("trial_begun", spec.trial_id)

    def trial_ended(self, trial, files):
        self._told("trial_ended", trial.trial_id)


@pytest.fixture
def run(write_job, tmp_path):
    def start(tracker=None, watcher=None, **changes):
        job = JobSpec.from_yaml(write_job(**changes))
        return TuningSession(job, tmp_path / "out", tracker or NoTracker(), watcher or Notes()).run()

    return start


def test_a_session_finds_compares_and_writes_files_ready_to_use(run, tmp_path):
    tracker = Told()
    answer = run(tracker, strategy="transfer", budget={"trials": 3})
    data = answer.asdict()
    assert data["trials"]["number"] == len(data["trials"]["list"]) == 3
    assert data["trials"]["list"][0]["predicted"]["tokens_per_s_per_device"] > 0
    assert data["best"]["knobs"]["zero_stage"] == 0  # what the slow link wants, unlike every source
    assert data["default"]["knobs"]["micro_batch"] == 1
    assert data["speedup"]["default"]["pairs"] == 2
    assert data["speedup"]["default"]["low"] > 1
    assert data["careful"]["cost_trials"] == 1  # 8 did not fit; the search had run 4
    assert data["mlflow_run_id"] == "run-of-job"
    config = json.loads((tmp_path / "out" / "ds_config.json").read_text())
    assert config["train_micro_batch_size_per_gpu"] == data["best"]["knobs"]["micro_batch"]
    assert json.loads((tmp_path / "out" / "best.json").read_text())["session"] == data["session"]
    script = tmp_path / "out" / "launch.sh"
    assert "--nnodes 2" in script.read_text()
    assert "DS_ACCELERATOR=cpu" in script.read_text()
    subprocess.run(["sh", "-n", script], check=True)
    assert set(data["files"]) == {"best.json", "ds_config.json", "launch.sh"}
    name, (metrics, files, note) = tracker.calls[-1]
    assert name == "session_ended"
    assert metrics["speedup_default"] == data["speedup"]["default"]["ratio"]
    assert all(path.exists() for path in files)
    assert "of the stock defaults" in note


@pytest.mark.parametrize("strategy", ["source-order", "transfer"])
def test_started_again_it_runs_nothing_and_says_the_same(run, strategy):
    first = run(strategy=strategy).asdict()
    watcher, tracker = Notes(), Told()
    again = run(tracker, watcher, strategy=strategy).asdict()
    assert watcher.begun_ids == []
    again["mlflow_run_id"] = None
    before, after = first.pop("spent"), again.pop("spent")
    assert again == first
    assert after["trials"] == before["trials"]
    assert after["minutes"]["spent"] > before["minutes"]["spent"]  # what it costs to go on counts too
    told = [what for name, what in tracker.calls if name == "trial_ended"]
    assert len(told) == len(set(told)) > first["trials"]["number"]  # a tracker that missed some has them now
    assert "going on with session" in watcher.notes[0]


def test_the_saved_surrogate_has_learned_every_trial_of_the_search(run, tmp_path):
    run(strategy="transfer", budget={"trials": 2})
    saved = TransferSurrogate.load(tmp_path / "out" / "surrogate" / "model")
    assert saved.predict(saved.check_rows_).provenance["trials"] == 2


def test_a_larger_budget_goes_on(run):
    four = [t["trial_id"] for t in run().asdict()["trials"]["list"]]
    six = [t["trial_id"] for t in run(budget={"trials": 6}).asdict()["trials"]["list"]]
    assert six[:4] == four
    assert len(six) == 6


def test_a_new_winner_is_compared_with_its_own_trials(run):
    first = run(budget={"trials": 1}).comparison.winner.knobs
    found = run(budget={"trials": 20}).comparison.winner
    assert found.knobs != first
    assert all(trial.knobs == found.knobs for trial in found.trials)


def test_the_files_hold_a_baseline_that_measured_faster(run, tmp_path):
    slow = {"micro_batch": 1, "zero_stage": 3, "activation_checkpointing": "full"}
    answer = run(space=slow | {"reduce_bucket_size": 5_000_000})
    data = answer.asdict()
    assert data["winner"]["knobs"]["activation_checkpointing"] == "full"
    assert data["best"]["knobs"] == data["careful"]["knobs"] != data["winner"]["knobs"]
    assert data["speedup"]["default"]["ratio"] > 1
    assert data["speedup"]["careful"]["same"]
    config = json.loads((tmp_path / "out" / "ds_config.json").read_text())
    assert config["train_micro_batch_size_per_gpu"] == data["careful"]["knobs"]["micro_batch"]
    assert answer.metrics()["best_tokens_per_s_per_device"] == data["careful"]["tokens_per_s_per_device"]
    ended, *ratios, held = answer.sentences()
    assert ended == "the search ended: every configuration was tried"
    assert all(line.endswith("slower") for line in ratios)
    assert held == "the files hold the defaults with the largest micro batch: that measured faster"


def test_another_job_in_the_same_folder_is_refused(run):
    run()
    with pytest.raises(InputError, match=r"job_digest: .*another folder with --out"):
        run(seed=1)


def test_two_sessions_do_not_share_a_folder(write_job, tmp_path):
    job = JobSpec.from_yaml(write_job())
    with (
        open_session(job, tmp_path / "out", Notes()),
        pytest.raises(InputError, match="another session is running"),
        open_session(job, tmp_path / "out", Notes()),
    ):
        pass


def test_failed_trials_count_against_the_budget(run):
    space = {"micro_batch": [8], "zero_stage": [0, 1, 2, 3]}
    bucket = {"reduce_bucket_size": [5_000_000], "activation_checkpointing": ["none"]}
    answer = run(space=space | bucket)
    data = answer.asdict()
    assert [t["status"] for t in data["trials"]["list"]] == ["oom"] * 4
    assert data["best"] is None
    assert "none of 4 trials ran (4 x oom: " in answer.sentences()[0]
    assert set(data["files"]) == {"best.json"}


def test_the_search_ends_when_the_space_does(run):
    space = {"micro_batch": [1, 2], "reduce_bucket_size": [5_000_000], "zero_stage": [0]}
    assert run(space=space, budget={"trials": 50}).asdict()["trials"]["number"] == 2


def test_when_the_minutes_are_over_the_running_trial_is_killed_and_not_recorded(run, monkeypatch, tmp_path):
    polls, killed = [], []

    def poll(self, handle, real=ReplayLauncher.poll):
        polls.append(handle.spec.trial_id)
        hangs = handle.spec.trial_id.endswith("t001") and time.monotonic() < until
        return None if hangs else real(self, handle)

    monkeypatch.setattr(ReplayLauncher, "poll", poll)
    monkeypatch.setattr(ReplayLauncher, "kill", lambda _self, handle: killed.append(handle.spec.trial_id))
    until = time.monotonic() + 1e6
    # one trial of the table is said to have taken a second, which counts
    data = run(budget={"minutes": 1.5 / 60}).asdict()
    assert [t["trial_id"][-4:] for t in data["trials"]["list"]] == ["t000"]
    assert [trial_id[-4:] for trial_id in killed] == ["t001"]
    sheet = json.loads((tmp_path / "out" / "runs" / killed[0] / "spec.json").read_text())
    submitted = len(polls)
    again = run(budget={"minutes": 1.5 / 60}).asdict()
    assert (again["trials"], again["best"]) == (data["trials"], data["best"])
    assert len(polls) == submitted  # the time is over: straight to the comparison, which had been run
    until = 0.0
    resumed = run(budget={"trials": 2}).asdict()["trials"]["list"]
    assert resumed[1]["trial_id"] == sheet["trial_id"]
    assert resumed[1]["knobs"]["zero_stage"] == sheet["knobs"]["zero_stage"]


def test_device_hours_and_cost_bound_the_whole_session(run, tmp_path, monkeypatch):
    """Trials of 0.3 s on two devices; a comparison of three configurations takes six or seven."""

    def poll(self, handle, real=ReplayLauncher.poll):
        time.sleep(0.3)
        return real(self, handle).model_copy(update={"wall_s": 0.3})

    monkeypatch.setattr(ReplayLauncher, "poll", poll)
    data = run(budget={"cost": 2.0, "price_per_device_hour": 900.0}).asdict()  # 4 s of both devices
    spent = data["spent"]
    assert spent["cost"]["spent"] == pytest.approx(spent["device_hours"]["spent"] * 900)
    assert 0.5 < spent["cost"]["spent"] < 2.0 + 2 * 0.3 / 3600 * 900 * 2
    assert data["speedup"]["default"]["pairs"] == 2  # room was left for the comparison
    assert 2 <= data["trials"]["number"] < 13
    (tmp_path / "out" / "spent.json").unlink()  # lost with the disk's cache: the trials say what was spent
    least = run(budget={"device_hours": 1e-6}).asdict()["spent"]["device_hours"]["spent"]
    trials = len(TrialStore(tmp_path / "out" / "trials"))
    assert least >= trials * 0.3 * 2 / 3600


def test_what_was_spent_survives_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr("pretune.tuner.budget.TICK_S", 0.0)
    budget = Budget(minutes=1)
    spending = Spending(tmp_path, budget, devices=8)
    with spending.during("search"):
        time.sleep(0.05)
        spending.tick()
        killed = Spending(tmp_path, budget, devices=8)  # what the next process finds
    assert 0.05 <= killed.seconds("search") <= spending.seconds("search")
    assert killed.left_s() < 59.95
    assert killed.held_left_s() == math.inf
    assert in_words(killed.asdict(3)).startswith("3 trials, ")


def test_when_nothing_ended_in_time_the_remedy_is_more_of_it(run, monkeypatch):
    monkeypatch.setattr(ReplayLauncher, "poll", lambda *_: None)
    answer = run(budget={"minutes": 0.2 / 60})
    assert answer.comparison is None
    assert "budget.minutes" in answer.sentences()[0]


@pytest.mark.parametrize("hosts", [[1, 1, 1], [2]])
def test_ranks_that_are_not_the_platforms_devices_are_refused_before_any_trial(run, tmp_path, hosts):
    """The target has two nodes of one device."""
    launcher = {"hosts": [{"address": f"10.0.0.{n}", "ranks": ranks} for n, ranks in enumerate(hosts)]}
    with pytest.raises(InputError, match=r"launcher: starts . ranks on each of . hosts, .* nodes 2"):
        run(launcher=launcher)
    assert not (tmp_path / "out" / "session.json").exists()


def test_ctrl_c_kills_the_trial_and_keeps_the_rest(run, monkeypatch, tmp_path):
    killed = []

    def poll(self, handle, real=ReplayLauncher.poll):
        if handle.spec.trial_id.endswith("t002") and not killed:
            raise KeyboardInterrupt
        return real(self, handle)

    monkeypatch.setattr(ReplayLauncher, "poll", poll)
    monkeypatch.setattr(ReplayLauncher, "kill", lambda _self, handle: killed.append(handle.spec.trial_id))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(killed) == 1
    assert len(TrialStore(tmp_path / "out" / "trials")) == 2
    assert run().asdict()["trials"]["number"] == 4


def test_a_trial_that_had_ended_is_recovered_not_run(run, monkeypatch):
    monkeypatch.setattr(ReplayLauncher, "poll", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()
    submitted = []

    def submit(self, spec, real=ReplayLauncher.submit):
        submitted.append(spec.trial_id[-4:])
        return real(self, spec)

    def recover(self, spec):
        assert spec.trial_id.endswith("t000")
        return ReplayLauncher.poll(self, ReplayLauncher.submit(self, spec))

    monkeypatch.setattr(
        ReplayLauncher,
        "recover",
        lambda s, spec: recover(s, spec) if spec.trial_id.endswith("t000") else None,
    )
    monkeypatch.setattr(ReplayLauncher, "submit", submit)
    assert run().asdict()["trials"]["number"] == 4
    assert "t000" not in submitted[1:]


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("fails_from", [1, 4])
def test_a_tracker_that_is_down_costs_one_warning(run, fails_from):
    watcher = Notes()
    data = run(Told(fails_from), watcher).asdict()
    assert data["trials"]["number"] == 4
    warnings = [note for note in watcher.notes if note.startswith("warning")]
    assert len(warnings) == 1
    assert "connection refused" in warnings[0]
    assert "pretune sync" in warnings[0]


def test_replay_refuses_what_was_not_recorded(run):
    with pytest.raises(InputError, match=r"no recorded trial .* narrow the space"):
        run(space={"micro_batch": [2], "threads_per_rank": [3]})


def test_a_default_that_cannot_run_is_refused_before_the_machine_is_probed(run, monkeypatch):
    monkeypatch.setattr(LocalLauncher, "run", lambda *_: pytest.fail("probed"))
    local = {"platform": "auto", "launcher": {"local": {"devices": 3}}}
    with pytest.raises(InputError, match=r"job job: default: dp: a global batch of 16 .* nearest: 2, 4"):
        run(**local)


def test_auto_needs_a_launcher_that_runs(run):
    with pytest.raises(InputError, match="platform: auto needs a launcher of ranks"):
        run(platform="auto")
