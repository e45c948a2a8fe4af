"""BoostedTrees: learns a platform, covers, is deterministic, and is what it was after loading."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from synthetic_platforms import candidates, trials

from pretune.errors import InputError
from pretune.model import (
    BoostedTrees,
    NoPhysics,
    Predictor,
    RandomSurrogate,
    Surrogate,
    TransferSurrogate,
    cross_validate,
)
from pretune.model.evaluation import predictions, scores
from pretune.model.surrogate import trusted


def held_out(surrogate: Predictor, learned: int, platform: str = "slow") -> dict[str, float]:
    table = trials(platform, seed=3)
    return scores(predictions(surrogate.fit(table[:learned]), table[learned:]))


def test_it_learns_what_physics_misses() -> None:
    none, some = held_out(BoostedTrees(), 0), held_out(BoostedTrees(), 60)
    assert some["median_absolute_relative_error"] < 0.05
    assert some["median_absolute_relative_error"] < none["median_absolute_relative_error"] / 3
    assert some["rank_correlation"] > 0.97


def test_physics_helps_where_trials_are_few() -> None:
    with_it, without = held_out(BoostedTrees(), 20), held_out(BoostedTrees(NoPhysics()), 20)
    assert with_it["median_absolute_relative_error"] < without["median_absolute_relative_error"]


@pytest.mark.parametrize("learned", [0, 1, 2, 5, 12, 60])
def test_intervals_cover_however_few_the_trials(learned: int) -> None:
    found = held_out(BoostedTrees(), learned)
    assert found["coverage"] >= 0.85
    if learned == 60:
        assert found["median_interval_ratio"] < 1.6


def test_cross_validation_never_predicts_a_repeat_from_its_twin() -> None:
    """Throughput that is noise per configuration is only predictable from its own repeats."""
    once = trials("loopback", 60).filter(pl.col("status") == "ok")
    rng = np.random.default_rng(0)
    noise = pl.Series("tokens_per_s_per_device", np.exp(rng.normal(8, 1, len(once))))
    twice = pl.concat([once.with_columns(noise)] * 3)
    grouped, _ = cross_validate(lambda: BoostedTrees(NoPhysics()), twice)
    leaking, _ = cross_validate(lambda: BoostedTrees(NoPhysics()), twice, [str(i) for i in range(len(twice))])
    assert grouped["rank_correlation"] < 0.3
    assert leaking["rank_correlation"] > 0.8


def test_cross_validation_reports_each_trial_once() -> None:
    table = trials("capped", 80)
    found, rows = cross_validate(BoostedTrees, table)
    assert sorted(rows["trial_id"]) == sorted(table.filter(pl.col("status") == "ok")["trial_id"])
    assert found["median_absolute_relative_error"] < 0.08
    with pytest.raises(InputError, match="record at least 2"):
        cross_validate(BoostedTrees, table.head(1))


def test_a_fold_in_which_nothing_ran_is_learned_from_and_not_scored() -> None:
    table = trials("capped", 80)
    ran, failed = (table.filter(pl.col("status") == status) for status in ("ok", "oom"))
    few = pl.concat([ran.head(4), failed.head(1)])
    assert len(few) == 5
    _, rows = cross_validate(BoostedTrees, few)
    assert sorted(rows["trial_id"]) == sorted(few["trial_id"].head(4))


def test_chance_to_run_tells_what_fits() -> None:
    table = trials("capped", seed=1)
    fitted = BoostedTrees().fit(table[:120])
    rest = table[120:]
    fits = (rest["status"] == "ok").to_numpy()
    chance = fitted.predict(rest).chance_to_run
    assert ((chance > 0.5) == fits).mean() > 0.9


def test_out_of_domain_gives_its_reason() -> None:
    fitted = BoostedTrees().fit(trials("slow", 40))
    wide = candidates("slow").head(1).with_columns(pl.lit(4096).alias("model.hidden_size"))
    assert fitted.predict(candidates("slow").head(1)).out_of_domain == [None]
    assert "model.hidden_size" in (fitted.predict(wide).out_of_domain[0] or "")


def test_intervals_widen_away_from_the_trials() -> None:
    near = trials("slow").filter(pl.col("knob.micro_batch") <= 2)
    fitted = BoostedTrees().fit(near)
    said = fitted.predict(candidates("slow"))
    width = np.log(said.high / said.low)
    far = (candidates("slow")["knob.micro_batch"] == 8).to_numpy()
    assert width[far].min() > np.median(width[~far])


ALL = [
    BoostedTrees(),
    BoostedTrees(NoPhysics()),
    RandomSurrogate(),
    TransferSurrogate("slow"),
    Surrogate(),
]


@pytest.mark.parametrize("surrogate", ALL, ids=repr)
class TestContract:
    """What every surrogate promises."""

    def learned(self, surrogate: Predictor, rows: int = 40) -> Predictor:
        history = pl.concat([trials("slow", rows), trials("capped", rows)], how="diagonal")
        return clone(surrogate).fit(history)

    def test_shapes_and_finite_values(self, surrogate: Predictor) -> None:
        for rows in (0, 1, 40):
            said = self.learned(surrogate, rows).predict(candidates("slow"))
            assert len(said) == len(said.out_of_domain) == 256
            assert (said.low < said.mean).all()
            assert (said.mean < said.high).all()
            assert np.isfinite(said.log_mean).all()
            assert ((said.chance_to_run >= 0) & (said.chance_to_run <= 1)).all()

    def test_no_candidates_no_predictions(self, surrogate: Predictor) -> None:
        assert len(self.learned(surrogate).predict(candidates("slow").head(0))) == 0

    def test_deterministic(self, surrogate: Predictor) -> None:
        a, b = (self.learned(surrogate).predict(candidates("slow")) for _ in range(2))
        assert np.array_equal(a.log_mean, b.log_mean)
        assert np.array_equal(a.chance_to_run, b.chance_to_run)

    def test_outcomes_of_candidates_are_not_read(self, surrogate: Predictor) -> None:
        fitted = self.learned(surrogate)
        bare, full = fitted.predict(candidates("slow")), fitted.predict(with_outcomes("slow"))
        assert np.array_equal(bare.log_mean, full.log_mean)

    def test_saved_and_loaded(self, surrogate: Predictor, tmp_path: Path) -> None:
        fitted = self.learned(surrogate)
        fitted.save(tmp_path)
        loaded = type(surrogate).load(tmp_path)
        a, b = fitted.predict(candidates("slow")), loaded.predict(candidates("slow"))
        assert a.log_mean == pytest.approx(b.log_mean, rel=1e-5)
        assert a.low == pytest.approx(b.low, rel=1e-4)
        assert a.chance_to_run == pytest.approx(b.chance_to_run, rel=1e-4)
        loaded.save(tmp_path / "again")
        assert {file.suffix for file in tmp_path.iterdir() if file.is_file()} <= {".json", ".ubj"}

    def test_saved_with_nothing_learned(self, surrogate: Predictor, tmp_path: Path) -> None:
        fitted = self.learned(surrogate, 0)
        fitted.save(tmp_path)
        loaded = type(surrogate).load(tmp_path)
        assert loaded.predict(candidates("slow")).log_mean == pytest.approx(
            fitted.predict(candidates("slow")).log_mean
        )

    def test_a_changed_sheet_is_refused(self, surrogate: Predictor, tmp_path: Path) -> None:
        self.learned(surrogate).save(tmp_path)
        sheet = json.loads((tmp_path / "surrogate.json").read_text())
        sheet["check"]["predictions"]["log_mean"][0] += 0.1
        (tmp_path / "surrogate.json").write_text(json.dumps(sheet))
        with pytest.raises(InputError, match="fit it again"):
            type(surrogate).load(tmp_path)


def with_outcomes(platform: str) -> pl.DataFrame:
    rows = candidates(platform)
    return rows.with_columns(pl.lit(1.0).alias("tokens_per_s_per_device"), pl.lit("oom").alias("status"))


def test_a_booster_of_another_fit_is_refused(tmp_path: Path) -> None:
    BoostedTrees().fit(trials("slow", 60)).save(tmp_path / "a")
    BoostedTrees().fit(trials("half", 60)).save(tmp_path / "b")
    (tmp_path / "b" / "trees.ubj").replace(tmp_path / "a" / "trees.ubj")
    with pytest.raises(InputError, match="fit it again"):
        BoostedTrees.load(tmp_path / "a")


def test_features_of_another_pretune_are_refused(tmp_path: Path) -> None:
    BoostedTrees().fit(trials("slow", 60)).save(tmp_path)
    sheet = json.loads((tmp_path / "surrogate.json").read_text())
    sheet["encoder"]["names"].append("physics.of_tomorrow")
    (tmp_path / "surrogate.json").write_text(json.dumps(sheet))
    with pytest.raises(InputError, match="features are not those of this pretune"):
        BoostedTrees.load(tmp_path)


def test_what_is_saved_is_plain_json(tmp_path: Path) -> None:
    nan = pl.lit(float("nan")).alias("intra_node.latency_s")
    fitted = BoostedTrees().fit(trials("slow", 60).with_columns(nan))
    fitted.save(tmp_path)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    json.loads((tmp_path / "surrogate.json").read_text(), parse_constant=refuse)
    again = BoostedTrees.load(tmp_path).predict(candidates("slow"))
    assert again.log_mean == pytest.approx(fitted.predict(candidates("slow")).log_mean, rel=1e-5)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    BoostedTrees().fit(trials("slow", 60)).save(tmp_path)
    (tmp_path / "trees.ubj").unlink()
    with pytest.raises(InputError, match=r"trees\.ubj"):
        BoostedTrees.load(tmp_path)
    with pytest.raises(InputError, match=r"surrogate\.json"):
        BoostedTrees.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="its own class"):
        RandomSurrogate.load(tmp_path)


def test_a_key_with_many_rows_does_not_outvote_the_others() -> None:
    """The trees are right about one key of a thousand rows, and wrong about five of ten each."""
    groups = np.repeat([0, 1, 2, 3, 4, 5], [1000, 10, 10, 10, 10, 10])
    trees = np.full(len(groups), 0.5)
    assert trusted(np.where(groups == 0, 0.5, -0.5), trees, groups) == 0
    assert trusted(np.where(groups == 0, -0.5, 0.5), trees, groups) > 0.6
    assert trusted(np.full(len(groups), np.nan), trees, groups) == 0.5
