"""Of sparse sources: what lies between their rows, and what became of the very same configuration."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pretune.model.columns import configurations
from pretune.model.expert import Expert
from pretune.model.outcomes import Outcomes
from pretune.model.smooth import Smooth


def test_a_knob_that_matters_gets_a_shorter_length() -> None:
    points = np.random.default_rng(0).random((80, 2)) * 3
    smooth = Smooth().fit(points, np.sin(2 * points[:, 0]), seed=0)
    assert smooth.lengths[1] > 5 * smooth.lengths[0]
    assert Smooth.restore(smooth.state()).predict(points) == pytest.approx(smooth.predict(points))


def test_few_smooth_rows_are_the_process_and_jumps_the_trees() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.random((40, 3)) * 3, rng.random((600, 3)) * 3
    smooth = Expert(5.0, 0).fit(few, few, np.sin(few @ [1.0, 2.0, 0.0]), np.arange(40))
    # a jump in a corner, next to a process of 250 rows
    corner = ((many[:, 0] > 2) & (many[:, 1] > 2)).astype(float)
    jump = Expert(5.0, 0).fit(many, many, corner, np.arange(600))
    assert smooth.share > 0.7 > 0.5 > jump.share


@pytest.mark.parametrize(("seed", "same"), [(0, True), (1, False)])
def test_an_outcome_elsewhere_counts_as_far_as_platforms_agree(seed: int, same: bool) -> None:
    rng = np.random.default_rng(seed)
    first = rng.random(300) < 0.5
    second = first if same else rng.random(300) < 0.5
    knob = np.arange(300)
    history = pl.concat(
        pl.DataFrame({"knob.a": knob, "platform.name": name, "status": np.where(ran, "ok", "crash").tolist()})
        for name, ran in (("one", first), ("two", second))
    )
    outcomes = Outcomes(0.5).fit(history, np.full(600, 0.5))
    chance = outcomes.correct(configurations(pl.DataFrame({"knob.a": knob})), np.full(300, 0.5))
    told = np.corrcoef(chance, first)[0, 1]
    assert outcomes.agreement > 0.9 if same else outcomes.agreement < 0.2
    assert told > 0.99 if same else np.ptp(chance) < 0.35
    assert outcomes.correct(
        configurations(pl.DataFrame({"knob.a": [999]})), np.array([0.4])
    ) == pytest.approx(0.4)
