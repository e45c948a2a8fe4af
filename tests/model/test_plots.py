"""The plots of a fit: real pictures, with every row in them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from synthetic_platforms import trials

from pretune.model import BoostedTrees
from pretune.model.evaluation import predictions
from pretune.model.plots import BARS, attribution_plot, parity_plot, residual_plot


@pytest.mark.parametrize("plot", [parity_plot, residual_plot])
@pytest.mark.parametrize("count", [0, 40])
def test_a_picture_is_written(plot, count: int, tmp_path: Path) -> None:
    table = trials("slow", 80)
    rows = predictions(BoostedTrees().fit(table[:40]), table[40:])[:count]
    path = plot(rows, tmp_path / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    if count:
        blank = plot(pl.DataFrame(schema=rows.schema), tmp_path / "blank.png")
        assert path.stat().st_size > blank.stat().st_size


def test_the_largest_attributions_are_drawn(tmp_path: Path) -> None:
    shares = {f"knob.{i}": i / 100 for i in range(BARS + 5)}
    most = dict(list(shares.items())[-BARS:])
    all_of_them, largest, others = (
        attribution_plot(each, tmp_path / f"{n}.png").read_bytes()
        for n, each in enumerate((shares, most, dict(list(shares.items())[:BARS])))
    )
    assert all_of_them == largest
    assert all_of_them != others
