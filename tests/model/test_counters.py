"""Counters of a source: they say what a configuration asks of a device, and so what else a new one slows."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pretune.model import NoPhysics, TransferSurrogate, TransformerPhysics
from pretune.model.counters import COMPONENTS, Counters
from pretune.model.evaluation import predictions, scores

COUNTERS = r"^counter\..*$"


def table(platform: str, traffic_cost: float, counted: bool = False) -> pl.DataFrame:
    """256 kernels, whose memory traffic depends on their knobs as no smooth function does."""
    grid = np.array(list(itertools.product(range(4), repeat=4)))
    traffic = np.random.default_rng(0).normal(size=len(grid))
    work = 0.2 * grid @ np.array([1.0, -1.0, 0.5, 0.0])
    rng = np.random.default_rng([1, *platform.encode()])
    log_time = work + traffic_cost * traffic + 0.02 * rng.normal(size=len(grid))
    columns = {f"knob.x{i}": grid[:, i] for i in range(4)}
    if counted:
        columns |= {f"counter.bytes_{i}": np.exp(20 + traffic + 0.1 * rng.normal(size=256)) for i in range(5)}
        columns |= {"counter.instructions": np.exp(12 + work), "counter.same": np.ones(len(grid))}
    return pl.DataFrame(columns).with_columns(
        pl.lit(platform).alias("platform.name"),
        pl.lit("ok").alias("status"),
        pl.Series("tokens_per_s_per_device", np.exp(-log_time)),
    )


def error_on_the_rest(source: pl.DataFrame, trials: int = 10) -> float:
    """Of a platform on which traffic costs a lot, after some trials; the mean of three draws of them."""
    target, errors = table("starved", 0.4), []
    for draw in range(3):
        order = np.random.default_rng(draw).permutation(len(target))
        known = pl.concat([source, target[order[:trials]]], how="diagonal")
        said = predictions(TransferSurrogate("starved", NoPhysics()).fit(known), target[order[trials:]])
        errors.append(scores(said)["median_absolute_relative_error"])
    return float(np.mean(errors))


def test_counters_of_the_source_tell_what_the_target_is_worse_at() -> None:
    source = table("plenty", 0.1, counted=True)
    with_them, without = (
        error_on_the_rest(source),
        error_on_the_rest(source.drop(COUNTERS, strict=False)),
    )
    assert with_them < 0.85 * without


def test_counters_that_say_nothing_cost_little() -> None:
    source = table("plenty", 0.1, counted=True)
    noise = source.with_columns(pl.col(COUNTERS).shuffle(seed=3))
    assert error_on_the_rest(noise) < 1.15 * error_on_the_rest(source.select(pl.exclude(COUNTERS)))


def test_components_are_foretold_for_configurations_that_were_not_counted() -> None:
    source = table("plenty", 0.1, counted=True)
    work = np.log(source["counter.instructions"].to_numpy())
    seen, unseen = source[::2], source[1::2]
    shares = Counters().fit(seen).shares(unseen.select(pl.col(r"^knob\..*$")))
    assert shares.shape == (128, COMPONENTS)
    left = (
        work[1::2] - shares @ np.linalg.lstsq(shares, work[1::2] - work.mean(), rcond=None)[0] - work.mean()
    )
    assert left.var() < 0.2 * work.var()


def test_the_platform_that_counted_most_speaks() -> None:
    few, most = table("few", 0.1, counted=True)[:30], table("most", 0.1, counted=True)
    both = pl.concat([few.with_columns(pl.col(COUNTERS) * 1e6), most])
    assert Counters().fit(both).platform == "most"


@pytest.mark.parametrize(
    "history",
    [
        table("plenty", 0.1),
        table("plenty", 0.1, counted=True)[:10],
        table("plenty", 0.1, counted=True).with_columns(pl.col(COUNTERS).replace_strict({}, default=1.0)),
        table("plenty", 0.1, counted=True).clear(),
    ],
    ids=["none", "too few", "constant", "no trial"],
)
def test_without_enough_counters_nothing_is_said(history: pl.DataFrame) -> None:
    assert Counters().fit(history).shares(table("starved", 0.4)).shape == (256, 0)


def test_a_platform_that_is_played_as_a_target_does_not_give_its_counters() -> None:
    known = pl.concat([table("plenty", 0.1, counted=True), table("other", 0.2)], how="diagonal")
    sources = TransferSurrogate("starved", NoPhysics()).fit(known).sources_
    assert sources.counters.platform == "plenty"
    assert sources.without("plenty").counters.platform is None
    assert sources.without("other").counters is sources.counters


def test_physics_needs_no_counters() -> None:
    source = table("plenty", 0.1, counted=True)
    assert TransferSurrogate("starved", TransformerPhysics()).fit(source).sources_.counters.platform is None


def test_they_are_kept_with_the_surrogate(tmp_path: Path) -> None:
    known = pl.concat([table("plenty", 0.1, counted=True), table("starved", 0.4)[:6]], how="diagonal")
    fitted = TransferSurrogate("starved", NoPhysics()).fit(known)
    fitted.save(tmp_path)
    loaded, rows = TransferSurrogate.load(tmp_path), table("starved", 0.4)
    assert loaded.predict(rows).log_mean == pytest.approx(fitted.predict(rows).log_mean, rel=1e-4)
    assert loaded.sources_.counters.platform == "plenty"
