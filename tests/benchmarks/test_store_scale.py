"""The scale benchmark asks the store and plain polars for the same thing."""

import store_scale

from pretune.datasets import TrialStore


def test_both_sides_hold_and_find_the_same_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(store_scale, "BATCH", 150)
    ours, plain = tmp_path / "ours", tmp_path / "plain"
    assert store_scale.append(ours, 400) > 0
    assert store_scale.plain_append(plain, 400) > 0
    found = TrialStore(ours).frame()
    assert found["trial_id"].n_unique() == 400
    assert sorted(found["platform.name"].unique()) == ["cluster-0", "cluster-1", "cluster-2"]
    theirs = store_scale.pl.read_parquet(plain / "*.parquet")
    for question in (store_scale.one_platform_and_model, store_scale.everything):
        mine, other = (question(frame.lazy()).collect().sort("trial_id") for frame in (found, theirs))
        assert len(mine) > 0
        assert mine["trial_id"].equals(other["trial_id"])
    assert store_scale.merge(ours) > 0
    assert store_scale.validate(ours) > 0
    assert len(TrialStore(ours)) == 400
