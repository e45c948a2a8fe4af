"""Large frames: predicted in slices, by any number of threads, and within a bound of processor time."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
from synthetic_platforms import candidates, trials

from pretune.model import Surrogate, TransformerPhysics, surrogate
from pretune.model.physics import reading
from pretune.model.physics.reading import read_once

SECONDS = 6.0  # of all cores, for 100,000 rows: some four times what they take


@pytest.fixture(scope="module")
def fitted() -> Surrogate:
    return Surrogate().fit(
        pl.concat([trials("slow", seed=1), trials("half", seed=2)], how="diagonal_relaxed")
    )


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were resolved, at each time that any were."""
    seen: list[int] = []
    real = reading.read_setup

    def count(frame: pl.DataFrame) -> object:
        seen.append(len(frame))
        return real(frame)

    monkeypatch.setattr(reading, "read_setup", count)
    return seen


def large(rows: int) -> pl.DataFrame:
    """Candidates of two platforms, one of them unknown, again and again."""
    once = pl.concat([candidates("slow"), candidates("gigabit")], how="diagonal_relaxed")
    return pl.concat([once] * (rows // len(once) + 1)).head(rows)


@pytest.mark.parametrize("threads", [1, 2, None])
def test_slices_and_threads_change_nothing(
    fitted: Surrogate, monkeypatch: pytest.MonkeyPatch, threads: int | None
) -> None:
    frame = large(1000)
    whole = fitted.predict(frame)
    monkeypatch.setattr(surrogate, "AT_ONCE", 150)
    monkeypatch.setattr(fitted, "n_jobs", threads)
    sliced = fitted.predict(frame)
    for name in ("log_mean", "low", "high", "chance_to_run"):
        np.testing.assert_allclose(getattr(sliced, name), getattr(whole, name), rtol=1e-6)
    assert sliced.out_of_domain == whole.out_of_domain


def test_a_hundred_thousand_configurations_take_seconds(fitted: Surrogate) -> None:
    frame = large(100_000)
    began = time.process_time()
    assert len(fitted.predict(frame)) == len(frame)
    assert time.process_time() - began < SECONDS


def test_a_prediction_reads_its_rows_once(fitted: Surrogate, counted: list[int]) -> None:
    fitted.predict(large(300))
    assert counted == [300]


def test_outside_of_read_once_a_frame_that_was_changed_is_read_again() -> None:
    physics, frame = TransformerPhysics(), candidates("slow").head(1)
    with read_once():
        before = physics.log_throughput(frame)
    frame.replace_column(frame.get_column_index("model.layers"), pl.Series("model.layers", [8]))
    assert physics.log_throughput(frame) < before


def test_of_a_long_history_a_sample_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A played newcomer is one with all its rows, also those that were not sampled."""
    monkeypatch.setattr(surrogate, "HELD_OUT_ROWS", 100)
    history = pl.concat([trials("slow", seed=1), trials("half", seed=2)], how="diagonal_relaxed")
    assert np.isfinite(Surrogate().fit(history).log_prior_).all()
