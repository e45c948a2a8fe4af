import json

import polars as pl
import pytest

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


def test_a_damaged_file_costs_its_trials_and_one_line_until_it_is_repaired(pretune, history, tmp_path):
    store = TrialStore(tmp_path / "bad")
    trials = list(TrialStore(history).trials())
    (lost,) = store.append(trials[0])
    store.append(trials[1:])
    lost.write_bytes(lost.read_bytes()[:-9])
    (lost.parent / "notes.txt").write_text("mine")
    shown = pretune("history", "show", "bad", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["trials"]) == (0, len(trials) - 1)
    assert shown.stderr.count(lost.name) == 1
    assert shown.stderr.startswith("warning: ")
    assert len(shown.stderr.splitlines()) == 1
    wrong = json.loads(pretune("history", "validate", "bad", "--json").stdout)["faults"]
    assert sorted(fault["file"].rsplit("/", 1)[1] for fault in wrong) == sorted([lost.name, "notes.txt"])
    moved = json.loads(pretune("history", "repair", "bad", "--json").stdout)["moved"]
    assert {each["file"] for each in moved} == {fault["file"] for fault in wrong}
    assert all((tmp_path / each["to"]).exists() for each in moved)
    sound = pretune("history", "validate", "bad")
    assert (sound.returncode, sound.stderr) == (0, "")
    assert pretune("history", "repair", "nowhere").returncode == 2


def test_rows_that_contradict_each_other_are_found_beside_a_damaged_file(pretune, history, tmp_path):
    trials = list(TrialStore(history).trials())
    store = TrialStore(tmp_path / "bad")
    (lost,) = store.append(trials[0])
    lost.write_bytes(b"no Parquet")
    wrong = next(trial for trial in trials[1:] if trial.ok)
    store.append(wrong.model_copy(update={"knobs": wrong.knobs.model_copy(update={"accumulation": 999})}))
    faults = json.loads(pretune("history", "validate", "bad", "--json").stdout)["faults"]
    assert {fault["field"] for fault in faults} >= {None, "knob.micro_batch"}


@pytest.mark.long
def test_a_history_is_merged_and_exported_by_commands(pretune, history, tmp_path):
    store = TrialStore(tmp_path / "mine")
    for trial in TrialStore(history).trials():
        store.append(trial)
    done = json.loads(pretune("history", "compact", "mine", "--json").stdout)
    assert (done["replaced"], len(done["merged"])) == (128, 2)
    assert json.loads(pretune("history", "show", "mine", "--json").stdout)["trials"] == 128
    assert "128 removed" in pretune("history", "compact", "mine", "--grace-s", "0").stdout
    shared = json.loads(pretune("history", "export", "mine", "shared", "--redact", "--json").stdout)
    assert (shared["trials"], shared["redacted"]) == (128, True)
    fitted = pretune("fit", "--history", "shared", "--out", "fits", "--tracking", "none", "--json")
    assert len(json.loads(fitted.stdout)["fits"]) == 2
    assert pretune("history", "export", "mine", "shared").returncode == 2
