"""Encoding: what is known before a trial, in a fixed order, the unknown left unknown."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from synthetic_platforms import candidates, trials

from pretune.errors import InputError
from pretune.model import (
    BoostedTrees,
    NoPhysics,
    Predictor,
    Surrogate,
    TransferSurrogate,
    TransformerPhysics,
)
from pretune.model.columns import configurations
from pretune.model.features import Encoder


def test_outcomes_and_identities_are_no_features() -> None:
    table = trials("loopback", 20).with_columns(
        pl.lit(1.5).alias("step_time_s"), pl.lit(7.0).alias("counter.bytes"), pl.lit("x").alias("source")
    )
    names = Encoder(TransformerPhysics()).fit(table).names_
    assert not [
        n for n in names if n.startswith(("step_time", "tokens", "counter", "source", "status", "trial_id"))
    ]
    assert not [n for n in names if n.startswith(("platform.name", "model.name"))]
    assert {"knob.micro_batch", "knob.attention=eager", "knob.attention=sdpa"} <= set(names)


def test_what_a_probe_fitted_is_a_feature_but_not_how_well_it_fits() -> None:
    fits = [pl.Series(f"inter_node_all_gather.{name}", range(20)) for name in ("latency_s", "relative_error")]
    names = Encoder(TransformerPhysics()).fit(trials("loopback", 20).with_columns(fits)).names_
    assert "inter_node_all_gather.latency_s" in names
    assert "inter_node_all_gather.relative_error" not in names


def test_the_matrix_keeps_its_order_whatever_the_frames() -> None:
    encoder = Encoder(TransformerPhysics()).fit(trials("loopback", 40))
    rows = candidates("loopback")
    shuffled = rows.select(rows.columns[::-1])
    assert np.array_equal(encoder.matrix(rows), encoder.matrix(shuffled), equal_nan=True)
    assert encoder.matrix(rows).shape == (256, len(encoder.names_))


def test_unknown_is_nan_and_a_new_word_is_no_word() -> None:
    encoder = Encoder(NoPhysics()).fit(trials("loopback", 40))
    row = candidates("loopback").head(1)
    at = encoder.names_.index("knob.attention=eager")
    assert np.isnan(encoder.matrix(row.with_columns(pl.lit(None).alias("knob.attention")))[0, at])
    assert encoder.matrix(row.with_columns(pl.lit("flash").alias("knob.attention")))[0, at] == 0


def test_out_of_domain_names_the_column() -> None:
    encoder = Encoder(NoPhysics()).fit(trials("loopback", 40))
    row = candidates("loopback").head(1)
    odd = row.with_columns(pl.lit(64).alias("knob.micro_batch"), pl.lit("flash").alias("knob.attention"))
    assert encoder.strange(row) == [None]
    (reason,) = encoder.strange(odd)
    assert reason is not None
    assert "knob.micro_batch" in reason
    assert "knob.attention" in reason


def odd_knob(values: list[object], dtype: pl.DataType | type[pl.DataType] | None = None) -> pl.DataFrame:
    """Trials with a knob that takes the values in turn."""
    turns = [values[i % len(values)] for i in range(40)]
    return trials("loopback", 40).with_columns(pl.Series("knob.odd", turns, dtype=dtype))


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["a", "b"])], ids=str)
def test_words_are_words_in_whatever_column(dtype: pl.DataType, tmp_path: Path) -> None:
    table, plain = odd_knob(["a", "b"], dtype), odd_knob(["a", "b"])
    encoder, as_strings = (Encoder(NoPhysics()).fit(each) for each in (table, plain))
    assert "knob.odd=b" in encoder.names_
    assert np.array_equal(encoder.matrix(table), as_strings.matrix(plain), equal_nan=True)
    BoostedTrees(n_estimators=5).fit(table).save(tmp_path)
    again = BoostedTrees.load(tmp_path).predict(plain).log_mean
    assert again == pytest.approx(BoostedTrees(n_estimators=5).fit(plain).predict(plain).log_mean, rel=1e-5)


def test_decimals_are_numbers(tmp_path: Path) -> None:
    table = odd_knob([Decimal("0.5"), Decimal("1.5")])
    fitted = BoostedTrees(n_estimators=5).fit(table)
    assert fitted.encoder_.ranges_["knob.odd"] == (0.5, 1.5)
    fitted.save(tmp_path)
    assert BoostedTrees.load(tmp_path).encoder_.ranges_ == fitted.encoder_.ranges_


@pytest.mark.parametrize("values", [[[1, 2], [3]], [{"a": 1}], [date(2026, 1, 1)], [timedelta(1)], [b"x"]])
@pytest.mark.parametrize("surrogate", [BoostedTrees(), TransferSurrogate("slow"), Surrogate()], ids=repr)
def test_a_knob_of_no_number_and_no_word_is_named(values: list[object], surrogate: Predictor) -> None:
    with pytest.raises(InputError, match=r"column knob\.odd is (List|Struct|Date|Dur|Bin).*a number or"):
        surrogate.fit(odd_knob(values))


def test_a_state_restores_the_encoder() -> None:
    encoder = Encoder(TransformerPhysics()).fit(trials("slow", 40))
    again = Encoder.restore(encoder.state(), TransformerPhysics())
    rows = candidates("slow")
    assert again.names_ == encoder.names_
    assert np.array_equal(again.points(rows), encoder.points(rows))


def test_the_same_choice_has_the_same_key_on_every_platform() -> None:
    here, there = candidates("loopback"), candidates("slow")
    assert configurations(here).equals(configurations(there))
    assert len(set(configurations(here))) == len(here)
    more = there.with_columns(pl.lit(None, dtype=pl.Int64).alias("knob.tile"), pl.lit(8).alias("knob.dp"))
    assert configurations(more).equals(configurations(here))
