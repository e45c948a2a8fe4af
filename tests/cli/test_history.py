import json

import polars as pl

from pretune.datasets import TrialStore


def test_what_trains_on_another_batch_or_optimizer_is_another_row(pretune, history, tmp_path):
    first = next(trial for trial in TrialStore(history).trials() if trial.ok)
    for name, change in {"a": {}, "b": {"global_batch_tokens": 2**20}, "c": {"optimizer": "sgd"}}.items():
        workload = first.workload.model_copy(update=change)
        TrialStore(tmp_path / "three").append(
            first.model_copy(update={"trial_id": name, "workload": workload})
        )
    rows = json.loads(pretune("history", "show", "three", "--json").stdout)["platforms"]
    assert [row["trials"] for row in rows] == [1, 1, 1]
    batches = {(row["workload.global_batch_tokens"], row["workload.optimizer"]) for row in rows}
    assert len(batches) == 3
    shown = pretune("history", "show", "three").stdout
    assert len({line for line in shown.splitlines() if first.workload.model.name in line}) == 3


def test_a_bad_history_is_reported_by_file_and_row_and_set_aside(pretune, history, write_job, tmp_path):
    trials = list(TrialStore(history).trials())
    ran = [trial for trial in trials if trial.ok]
    bad = {
        ran[3].trial_id: {"step_time_s": ran[3].step_time_s * 1e3},
        ran[7].trial_id: {"knobs": ran[7].knobs.model_copy(update={"accumulation": 999})},
    }
    store = TrialStore(tmp_path / "bad")
    store.append([trial.model_copy(update=bad.get(trial.trial_id, {})) for trial in trials])
    found = pretune("history", "validate", "bad", "--json")
    assert found.returncode == 1
    faults = json.loads(found.stdout)["faults"]
    named = {pl.read_parquet(tmp_path / each["file"])["trial_id"][each["row"]] for each in faults}
    assert named == set(bad)
    assert {fault["field"] for fault in faults} >= {"step_time_s", "knob.micro_batch"}
    assert all(fault["remedy"] for fault in faults)
    said = pretune("predict", write_job(history=str(tmp_path / "bad")))
    assert said.returncode == 0, said.stderr
    assert "set aside 2 of 128 trials" in said.stderr
    fitted = pretune("fit", "--history", "bad", "--out", "fits", "--tracking", "none", "--json")
    assert sum(each["trials"] for each in json.loads(fitted.stdout)["fits"]) == 126
