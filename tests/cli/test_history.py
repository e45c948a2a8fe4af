import json

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
