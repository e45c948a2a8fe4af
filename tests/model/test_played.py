"""Sources played as targets: how far off a new model's need for memory is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from synthetic_platforms import PLATFORMS, VOCABULARY, candidates, trials

from pretune.model import NoPhysics, TransferSurrogate, TransformerPhysics
from pretune.model.feasibility import MemoryEdge
from pretune.model.played import USUAL_DOUBT, NeedDoubt

ROOM = {"a": 2.5e8, "b": 1.5e8, "c": 1.1e8}  # bytes in which about 3, 2 and 1 of 4 configurations fit


def known(**believed: float) -> pl.DataFrame:
    """Trials of a model each on devices of little room, which the store believes to have as much, or what is
    ``believed``."""
    tables = [
        fitting(name, room).with_columns(
            pl.lit(int(believed.get(name, room))).alias("accelerator.memory_bytes"),
            pl.lit(VOCABULARY + extra).alias("model.vocabulary"),
        )
        for extra, (name, room) in enumerate(ROOM.items(), start=1)
    ]
    return pl.concat(tables, how="diagonal")


def fitting(name: str, room: float) -> pl.DataFrame:
    PLATFORMS[name] = (*PLATFORMS["loopback"][:3], room, 1)
    try:
        return trials(name)
    finally:
        del PLATFORMS[name]


def doubt(history: pl.DataFrame) -> float:
    return NeedDoubt.played(TransformerPhysics(), history, 5).sd


def test_models_that_fill_up_otherwise_than_the_others_say_are_doubted() -> None:
    alike, unlike = known(), known(b=1.5e8 * np.e)
    assert doubt(alike) < USUAL_DOUBT
    assert doubt(unlike) > 2 * doubt(alike)


def test_one_model_shows_nothing_of_the_next() -> None:
    alone = known().filter(pl.col("platform.name") == "a")
    assert doubt(alone) == pytest.approx(USUAL_DOUBT)
    assert doubt(alone.clear()) == pytest.approx(USUAL_DOUBT)
    assert NeedDoubt.played(NoPhysics(), known(), 5).sd == 0.0


def test_what_hardly_fits_is_less_likely_on_a_new_model_than_on_one_of_the_history() -> None:
    rows = candidates("capped")
    surrogate = TransferSurrogate("capped").fit(known(b=1.5e8 * np.e))
    need = surrogate.need_.over_capacity(rows, surrogate.sources_.encoder.matrix(rows))
    near = (need < -0.05) & (need > -0.4)
    assert near.any()
    new = surrogate.predict(rows).chance_to_run[near]
    held = surrogate.need_doubt_.models | NeedDoubt.played(NoPhysics(), rows, 5).models
    surrogate.need_doubt_ = replace(surrogate.need_doubt_, models=held)
    assert new.mean() < surrogate.predict(rows).chance_to_run[near].mean()


def test_the_edge_is_where_outcomes_turn() -> None:
    x = np.linspace(-1.5, 1.5, 200)
    status = np.where(x < 0.4, "ok", "oom").astype(object)
    where, sd = MemoryEdge().fit(x, status).where()
    assert where == pytest.approx(0.4, abs=0.05)
    assert sd < 0.1 < MemoryEdge().where()[1]
