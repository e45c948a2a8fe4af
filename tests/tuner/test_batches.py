from __future__ import annotations

import json

import pytest

from pretune.datasets import TrialStore
from pretune.errors import InputError
from pretune.mlflow_config import NoTracker
from pretune.tuner.batches import tune_batches
from pretune.tuner.job import JobSpec
from pretune.tuner.runner import Watcher
from pretune.tuner.session import TuningSession


@pytest.fixture
def two_batches(write_job, recorded, tmp_path):
    """A job of two global batches, both of which are recorded; the smaller one's steps take half the time."""
    store = TrialStore(tmp_path / "both")
    for trial in TrialStore(recorded).trials():
        store.append(trial)
        if trial.knobs.accumulation > 1:
            smaller = trial.workload.model_copy(update={"global_batch_tokens": 8192})
            knobs = trial.knobs.model_copy(update={"accumulation": trial.knobs.accumulation // 2})
            updates = {"workload": smaller, "knobs": knobs, "trial_id": f"{trial.trial_id}-half"}
            shorter = {"step_time_s": trial.step_time_s / 2} if trial.ok else {}
            store.append(trial.model_copy(update=updates | shorter))

    def job(**changes):
        given = {
            "history": "none",
            "global_batch_tokens": [16384, 8192],
            "launcher": {"replay": str(tmp_path / "both")},
        }
        return JobSpec.from_yaml(write_job(**given | {"strategy": "transfer"} | changes))

    return job


@pytest.mark.long
def test_each_batch_is_tuned_within_the_whole_budget_and_none_is_called_the_best(two_batches, tmp_path):
    found = tune_batches(two_batches(budget={"trials": 5}), tmp_path / "out", NoTracker(), Watcher())
    first, second = found.asdict()["batches"]
    assert (first["global_batch_tokens"], second["global_batch_tokens"]) == (16384, 8192)
    assert (first["trials"]["number"], second["trials"]["number"]) == (3, 2)
    assert "best" not in found.asdict()
    for name in ("batch-16384", "batch-8192"):
        assert (tmp_path / "out" / name / "ds_config.json").exists()
    saved = json.loads((tmp_path / "out" / "batches.json").read_text())
    assert [each["session"] for each in saved["batches"]] == [first["session"], second["session"]]
    again = tune_batches(two_batches(budget={"trials": 5}), tmp_path / "out", NoTracker(), Watcher())
    assert [each.asdict()["trials"] for each in again.answers] == [first["trials"], second["trials"]]


def test_a_batch_is_a_source_for_the_next(two_batches, tmp_path):
    """What one batch's trials told moves and narrows what the next one's first trial is expected to bring."""
    told = tune_batches(two_batches(budget={"trials": 6}), tmp_path / "out", NoTracker(), Watcher())
    alone = two_batches(budget={"trials": 3}, global_batch_tokens=8192)
    untold = TuningSession(alone, tmp_path / "alone", NoTracker(), Watcher()).run()
    with_source, without = (
        answer.asdict()["trials"]["list"][0]["predicted"] for answer in (told.answers[1], untold)
    )
    assert with_source["high"] / with_source["low"] < without["high"] / without["low"]


def test_only_tune_takes_several(two_batches, write_job):
    with pytest.raises(InputError, match="global_batch_tokens: lists several, which only tune takes"):
        two_batches().workload()
    with pytest.raises(InputError, match="global_batch_tokens 1500 is no whole number of sequences"):
        JobSpec.from_yaml(write_job(global_batch_tokens=[16384, 1500]))
