"""What the search does where hosts fail, where trials are hopeless, and where more of them bring nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pretune.collector.evidence import write_json
from pretune.collector.launchers.replay import ReplayLauncher
from pretune.datasets import Trial, TrialStore
from pretune.datasets.trial import Status
from pretune.errors import InputError, LaunchError
from pretune.mlflow_config import NoTracker
from pretune.tuner.job import JobSpec
from pretune.tuner.runner import Watcher
from pretune.tuner.session import TuningSession
from pretune.tuner.stopping import chance_to_beat
from pretune.tuner.tuner import Tuner


class Notes(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def run(write_job, tmp_path):
    def start(watcher=None, **changes):
        job = JobSpec.from_yaml(write_job(**changes))
        return TuningSession(job, tmp_path / "out", NoTracker(), watcher or Notes()).run()

    return start


@pytest.fixture
def preempted(monkeypatch):
    """Interrupts the next so many runs of the trials of a name."""
    left = {}

    def poll(self, handle, real=ReplayLauncher.poll):
        trial = real(self, handle)
        name = handle.spec.trial_id.split("-")[-1].split(".")[0]
        if left.get(name, 0) == 0:
            return trial
        left[name] -= 1
        told = {
            name: getattr(trial, name) for name in ("created_at", "wall_s", *type(handle.spec).model_fields)
        }
        return Trial(**told, status="interrupted", cause="slurm: node 7 failed")

    monkeypatch.setattr(ReplayLauncher, "poll", poll)
    return left


def names(out, *statuses):
    return sorted(
        t.trial_id.split("-")[-1] for t in TrialStore(out / "trials").trials() if t.status in statuses
    )


def test_what_a_host_interrupted_is_stored_and_run_again(run, preempted, tmp_path):
    preempted.update(t001=1, winner=1)
    data = run(retries=1).asdict()
    assert [t["trial_id"].split("-")[-1] for t in data["trials"]["list"]] == [
        "t000",
        "t001.2",
        "t002",
        "t003",
    ]
    assert names(tmp_path / "out", Status.INTERRUPTED) == ["t001", "winner"]
    first, second = (
        next(t for t in TrialStore(tmp_path / "out" / "trials").trials() if t.trial_id.endswith(name))
        for name in ("-t001", "-t001.2")
    )
    assert first.knobs == second.knobs
    assert data["speedup"]["default"]["pairs"] == 2
    assert data["spent"]["trials"]["spent"] == 4


def test_on_resume_it_is_not_taken_for_done_while_the_policy_allows_more(run, preempted, tmp_path):
    preempted.update(t001=2)
    lost = run(retries=0).asdict()["trials"]["list"]
    assert lost[1]["status"] == "interrupted"
    assert "node 7" in lost[1]["cause"]
    again = run(retries=0).asdict()["trials"]["list"]
    assert again == lost  # the policy says no
    found = run(retries=2).asdict()["trials"]["list"]
    assert [t["status"] for t in found] == [t["status"] for t in lost[:1]] + ["ok"] + [
        t["status"] for t in lost[2:]
    ]
    assert found[1]["knobs"] == lost[1]["knobs"]
    assert names(tmp_path / "out", Status.INTERRUPTED) == ["t001", "t001.2"]


def test_a_failure_of_the_configuration_is_data_and_never_run_again(run):
    space = {"micro_batch": [8], "zero_stage": [0, 1], "reduce_bucket_size": 5_000_000}
    found = run(space=space | {"activation_checkpointing": "none"}, retries=3, history="none").asdict()[
        "trials"
    ]["list"]
    assert [t["status"] for t in found] == ["oom", "oom"]


def test_an_interrupted_trial_teaches_the_strategy_nothing(workload, target):
    tuner = Tuner({"micro_batch": [1, 2], "zero_stage": [0]}, workload, target, strategy="random")
    knobs = tuner.ask()[0].knobs
    sheet = {"workload": workload, "platform": target, "knobs": knobs, "trial_id": "a"}
    tuner.tell(Trial(**sheet, created_at="2025-01-01T00:00:00Z", status="interrupted", cause="preempted"))
    assert (tuner.strategy.told, tuner.strategy.pending) == ([], [])
    assert tuner.ask()[0].knobs != knobs


def test_a_launcher_that_fails_is_opened_anew_and_said_to_be(run, write_job, tmp_path, monkeypatch):
    monkeypatch.setattr("pretune.tuner.runner.PAUSE_S", 0.0)
    fails, closed = [2], []

    def submit(self, spec, real=ReplayLauncher.submit):
        if spec.trial_id.endswith("t001") and fails[0]:
            fails[0] -= 1
            raise LaunchError("host b: its agent ended with code 255")
        return real(self, spec)

    monkeypatch.setattr(ReplayLauncher, "submit", submit)
    monkeypatch.setattr(ReplayLauncher, "close", lambda _self: closed.append(1))
    watcher = Notes()
    assert run(watcher, retries=2).asdict()["trials"]["number"] == 4
    assert [note for note in watcher.notes if "code 255" in note]
    assert len(closed) == 3  # twice to begin anew, and at the end
    fails[0] = 2
    with pytest.raises(LaunchError, match="code 255"):
        TuningSession(JobSpec.from_yaml(write_job(retries=1)), tmp_path / "other", NoTracker(), Notes()).run()


# -- when more trials bring nothing -------------------------------------------------
def test_the_search_ends_when_another_trial_is_expected_to_bring_too_little(run):
    budget = {"trials": 40, "stop_below": 0.02, "least_trials": 5}
    answer = run(strategy="transfer", budget=budget)
    number = answer.asdict()["trials"]["number"]
    assert 5 <= number < 40
    assert "another trial is expected to bring" in answer.sentences()[0]
    best = answer.comparison.winner.tokens_per_s_per_device
    more = run(strategy="transfer", budget={"trials": number + 8}).comparison.winner.tokens_per_s_per_device
    assert more < best * 1.02 * 1.02  # what was asked for, and the table's noise


def test_never_before_the_least_number_of_trials(run):
    budget = {"trials": 8, "stop_below": 0.99, "least_trials": 5}
    assert run(strategy="transfer", budget=budget, history="none").asdict()["trials"]["number"] == 5


def test_a_strategy_that_does_not_predict_cannot_stop(write_job):
    with pytest.raises(InputError, match="stop_below needs a strategy that predicts"):
        JobSpec.from_yaml(write_job(strategy="random", budget={"trials": 9, "stop_below": 0.01}))


# -- when a trial is hopeless -------------------------------------------------------
def test_the_chance_to_beat_falls_with_the_distance_and_with_the_windows():
    assert chance_to_beat(1.0, [2.0, 2.0]) == 1.0  # too few to tell
    assert chance_to_beat(1.0, [2.0, 2.02, 1.98]) < 0.01
    assert chance_to_beat(1.0, [1.05, 1.06, 1.04]) > 0.1
    assert chance_to_beat(1.0, [0.9, 0.91, 0.89]) > 0.9
    noisy = [1.2, 3.0, 0.8]
    assert chance_to_beat(1.0, noisy) > 0.05
    assert chance_to_beat(1.0, [1.3] * 10) < chance_to_beat(1.0, [1.3] * 3)


def test_as_good_a_trial_is_hardly_ever_stopped():
    rng = np.random.default_rng(0)
    stopped = 0
    for _ in range(400):
        windows = 1.0 * math.exp(rng.normal(0, 0.03)) * np.exp(rng.normal(0, 0.05, 6))
        stopped += any(chance_to_beat(1.0, windows[:n].tolist()) < 0.01 for n in range(3, 7))
    assert stopped <= 12  # a per cent at each of four looks is four at most: looks are alike


def test_a_hopeless_trial_is_asked_to_stop_and_a_verification_never(run, monkeypatch, tmp_path):
    stopped, waits = [], {}

    def submit(self, spec, real=ReplayLauncher.submit):
        folder = tmp_path / "out" / "runs" / spec.trial_id
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "progress.json", {"window_times_s": [1e3, 1e3, 1e3]})  # slower than any best
        return real(self, spec)

    def poll(self, handle, real=ReplayLauncher.poll):
        waits[handle.spec.trial_id] = waits.get(handle.spec.trial_id, 0) + 1
        return None if waits[handle.spec.trial_id] == 1 else real(self, handle)

    monkeypatch.setattr("pretune.tuner.runner.POLL_S", 0.0)
    monkeypatch.setattr(ReplayLauncher, "submit", submit)
    monkeypatch.setattr(ReplayLauncher, "poll", poll)
    monkeypatch.setattr(
        ReplayLauncher, "stop", lambda _self, handle: stopped.append(handle.spec.trial_id[-4:])
    )
    run(budget={"trials": 3})
    assert stopped == ["t001", "t002"]  # the first has none to be compared with


# -- several at a time --------------------------------------------------------------
def test_what_is_tried_at_a_time_differs(workload, target, history, fine):
    """With a belief of what is pending, four proposals lie further apart than without one."""

    def four(believing):
        tuner = Tuner(fine.space, workload, target, history, seed=0)
        for _ in range(2):
            tuner.tell(fine.outcomes[frozenset(tuner.ask()[0].knobs.settings().items())])
        found = []
        for _ in range(4):
            found += tuner.ask()
            if not believing:
                tuner.strategy.pending.clear()
        return found

    spread, close = four(True), four(False)
    assert len({str(each.knobs) for each in spread}) == 4
    assert distance(spread) > distance(close)
    predicted = spread[-1].predicted
    assert predicted.high / predicted.low > 1.02  # what is pending is not taken for known in what is shown


def distance(proposals) -> int:
    """Knobs that differ, over all pairs."""
    settings = [each.knobs.settings() for each in proposals]
    return sum(a.get(n) != b.get(n) for a in settings for b in settings for n in {*a, *b})


@pytest.fixture
def slow(monkeypatch):
    """Trials of a name need so many polls; returns the ids that ran at the same time, at each poll."""
    left, running, together = {}, set(), []

    def submit(self, spec, real=ReplayLauncher.submit):
        running.add(spec.trial_id.split("-")[-1])
        return real(self, spec)

    def poll(self, handle, real=ReplayLauncher.poll):
        name = handle.spec.trial_id.split("-")[-1]
        together.append(set(running))
        left[name] = left.get(name, {"t000": 5}.get(name, 2)) - 1
        if left[name] > 0:
            return None
        running.discard(name)
        return real(self, handle)

    monkeypatch.setattr("pretune.tuner.runner.POLL_S", 0.0)
    monkeypatch.setattr(ReplayLauncher, "submit", submit)
    monkeypatch.setattr(ReplayLauncher, "poll", poll)
    return together


def test_as_many_run_at_a_time_as_there_are_groups_and_the_comparison_runs_alone(run, slow):
    data = run(parallel=2, budget={"trials": 6}, strategy="transfer", history="none").asdict()
    searched = [ids for ids in slow if all(name.startswith("t") for name in ids)]
    assert max(map(len, searched)) == 2
    assert {"t000", "t002"} in searched  # a free group does not wait for a slow one
    assert all(len(ids) == 1 for ids in slow if ids not in searched)
    assert data["trials"]["number"] == 6
    assert len({str(t["knobs"]) for t in data["trials"]["list"]}) == 6


@pytest.mark.usefixtures("slow")
def test_killed_with_several_under_way_it_goes_on_with_them(run, monkeypatch, tmp_path):
    killed, real = [], ReplayLauncher.poll

    def poll(self, handle):
        if handle.spec.trial_id.endswith("t003"):
            raise KeyboardInterrupt
        return real(self, handle)

    monkeypatch.setattr(ReplayLauncher, "poll", poll)
    monkeypatch.setattr(ReplayLauncher, "kill", lambda _self, handle: killed.append(handle.spec.trial_id))
    with pytest.raises(KeyboardInterrupt):
        run(parallel=3, budget={"trials": 6}, strategy="transfer", history="none")
    assert len(killed) >= 2
    assert {name[-4:] for name in killed} >= {"t000", "t003"}
    sheets = {path.parent.name: path.read_text() for path in (tmp_path / "out/runs").glob("*-t*/spec.json")}
    monkeypatch.setattr(ReplayLauncher, "poll", real)
    data = run(parallel=3, budget={"trials": 6}, strategy="transfer", history="none").asdict()
    assert len({str(t["knobs"]) for t in data["trials"]["list"]}) == 6  # none was proposed twice
    for trial_id, sheet in sheets.items():
        assert (tmp_path / "out/runs" / trial_id / "spec.json").read_text() == sheet
