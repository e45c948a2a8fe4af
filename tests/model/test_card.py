"""Model cards: what they say follows from the trials, and their attributions add up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from synthetic_platforms import candidates, trials

from pretune.model import BoostedTrees, NoPhysics, cross_validate
from pretune.model.attribution import EXPECTED, attributions, shap_values
from pretune.model.card import Card
from pretune.model.evaluation import predictions, scores
from pretune.model.limits import limits


def card_of(table: pl.DataFrame, baseline: NoPhysics | None = None) -> Card:
    fitted = BoostedTrees(baseline, n_estimators=60).fit(table)
    _, held_out = cross_validate(lambda: BoostedTrees(baseline, n_estimators=60), table)
    return Card.of("here", fitted, table, held_out, {"seed": 0})


@pytest.fixture(scope="module")
def two_models() -> pl.DataFrame:
    """The same platform, some of it with another model and on other software."""
    wide = trials("capped", 40, seed=1).with_columns(
        pl.lit("wide").alias("model.name"),
        pl.lit(512, pl.Int64).alias("model.hidden_size"),
        pl.lit("2.9").alias("software.torch"),
    )
    return pl.concat([trials("capped", 80), wide], how="diagonal")


@pytest.fixture(scope="module")
def card(two_models: pl.DataFrame) -> Card:
    return card_of(two_models)


@pytest.mark.parametrize("baseline", [None, NoPhysics()])
def test_shap_values_add_up_to_what_the_trees_say(baseline: NoPhysics | None) -> None:
    fitted = BoostedTrees(baseline).fit(trials("slow", 80))
    rows = candidates("slow")
    values = shap_values(fitted, rows)
    said = fitted.trees_.predict(fitted.encoder_.matrix(rows)) - fitted.trees_.level_
    assert values.sum_horizontal().to_numpy() == pytest.approx(said, abs=1e-5)
    assert {"knob.attention", "knob.micro_batch", EXPECTED} <= set(values.columns)
    assert not [name for name in values.columns if "=" in name]


def test_rows_without_physics_are_explained_by_the_trees_that_predict_them() -> None:
    shaped = trials("slow", 40)
    bare = shaped.with_columns(pl.lit(None).alias("model.hidden_size"))
    fitted = BoostedTrees().fit(pl.concat([shaped, bare], how="diagonal_relaxed"))
    total = shap_values(fitted, bare).sum_horizontal().to_numpy() + fitted.blind_.level_
    assert total == pytest.approx(fitted.predict(bare).log_mean, abs=1e-5)


def test_the_knob_that_matters_most_leads_the_attributions() -> None:
    """Recomputation costs a third on a platform whose links are fast; nothing is said of a lone value."""
    shares = attributions(BoostedTrees(NoPhysics()).fit(trials("half")), trials("half"))
    assert next(iter(shares)) in {"knob.activation_checkpointing", "knob.micro_batch"}
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert "platform.nodes" not in shares
    assert 0.05 < shares["knob.activation_checkpointing"] < 0.37
    assert attributions(BoostedTrees().fit(trials("half", 0)), trials("half", 0)) == {}


def test_trials_and_errors_are_told_by_workload_and_scale(card: Card, two_models: pl.DataFrame) -> None:
    assert set(card.by_workload) == {"tiny-128x16-fp32", "wide-128x16-fp32"}
    assert set(card.by_devices) == {"2"}
    assert card.everything.trials == dict(two_models["status"].value_counts().iter_rows())
    parts = card.by_workload.values()
    assert sum(sum(part.trials.values()) for part in parts) == len(two_models)
    assert sum(part.errors.trials for part in parts) == card.everything.errors.trials


def test_errors_are_those_of_the_trials_held_out(two_models: pl.DataFrame) -> None:
    held_out = predictions(BoostedTrees().fit(two_models[::2]), two_models[1::2])
    errors = Card.of("x", BoostedTrees().fit(two_models), two_models, held_out, {}).everything.errors
    assert errors.median == scores(held_out)["median_absolute_relative_error"]
    assert errors.coverage == scores(held_out)["coverage"]
    low, high = held_out["low"] / held_out["predicted"], held_out["high"] / held_out["predicted"]
    assert errors.interval_width == pytest.approx((high - low).mean())


def test_the_page_and_the_json_say_the_same(card: Card, tmp_path: Path) -> None:
    page, data = card.save(tmp_path, [tmp_path / "parity.png"])
    assert Card.model_validate(json.loads(data.read_text())) == card
    text = page.read_text()
    assert "![parity](parity.png)" in text
    assert "tmp" not in text
    for sentence in card.must_not:
        assert f"- {sentence}\n" in text
    counts = ", ".join(f"{count} {status}" for status, count in card.everything.trials.items())
    assert f"| all | {counts} | {card.everything.errors.trials} |" in text
    assert "| knob.micro_batch | 1 to 8 |" in text
    assert "torch 2.9" in text


def told(table: pl.DataFrame, held_out: pl.DataFrame | None = None) -> str:
    fitted = BoostedTrees(n_estimators=60).fit(table)
    rows = predictions(fitted, table) if held_out is None else held_out
    return "\n".join(limits(fitted, table, rows))


def test_limits_name_what_was_never_seen(two_models: pl.DataFrame) -> None:
    found = told(two_models)
    assert "number of devices other than 2" in found
    assert "precision other than fp32" in found
    assert "software stack other than torch 2.9" in found
    assert "Models larger than 20.4M" in found  # 1.5 x (4 layers x 12 x 512^2 + 2048 x 512)
    assert "never varied" not in found
    fixed = told(two_models.filter(pl.col("knob.attention") == "sdpa"))
    assert "Choosing attention: never varied." in fixed


def test_limits_follow_failures_and_peaks() -> None:
    failing, sound = trials("capped", 60), trials("slow", 60)
    assert "what will fail" in told(sound)
    assert "what will fail" not in told(failing)
    assert "memory is left" in told(sound)
    measured = sound.with_columns(pl.lit(1e9).alias("peak_memory_device_bytes"))
    assert "memory is left" not in told(measured)


def test_limits_follow_the_errors() -> None:
    table = trials("slow", 60)
    fine = predictions(BoostedTrees().fit(table), table)
    assert "Trusting" not in told(table, fine)
    assert "Ranking" not in told(table, fine)
    missed = fine.with_columns(low=pl.col("predicted") * 1.5, high=pl.col("predicted") * 1.6)
    assert "Trusting its 90% intervals" in told(table, missed)
    rng = np.random.default_rng(0)
    guessed = fine.with_columns(pl.Series("predicted", rng.permutation(fine["predicted"].to_numpy())))
    assert "Ranking" in told(table, guessed)
    assert "only 5 trials could be held out" in told(table, fine.head(5))
    odd = fine.with_columns(
        workload=pl.when(pl.int_range(pl.len()) < 9).then(pl.lit("odd")).otherwise("workload")
    )
    worse = odd.with_columns(
        predicted=pl.col("predicted") * pl.when(pl.col("workload") == "odd").then(2.0).otherwise(1.0)
    )
    assert "Close decisions with workload odd" in told(table, worse)
    assert "Close decisions" not in told(table, odd)


def test_a_table_without_physics_has_a_card() -> None:
    knobs = [name for name in trials("slow", 1).columns if name.startswith("knob.")]
    table = trials("slow", 60).select("trial_id", "status", "tokens_per_s_per_device", *knobs)
    found = card_of(table, NoPhysics())
    assert found.baseline == "none"
    assert "Models larger" not in found.markdown()
    assert list(found.by_devices) == ["?"]


def test_one_trial_makes_a_card_that_says_so() -> None:
    table = trials("slow", 1)
    fitted = BoostedTrees().fit(table)
    card = Card.of("slow", fitted, table, predictions(fitted, table.clear()), {})
    assert card.everything.errors.median is None
    assert any("only 0 trials" in sentence for sentence in card.must_not)
    assert Card.model_validate_json(card.model_dump_json()) == card
    assert "| all | 1 ok | 0 |" in card.markdown()
