"""Parity and residuals of predictions on rows that were held out, and what moved them; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 15


def parity_plot(rows: pl.DataFrame, path: str | Path) -> Path:
    """Predicted over measured throughput with the 90 % intervals; ``rows`` as from :func:`cross_validate`."""
    axes = _axes("measured, tokens/s per device", "predicted, tokens/s per device")
    measured, predicted, low, high = (_column(rows, n) for n in ("measured", "predicted", "low", "high"))
    axes.errorbar(measured, predicted, [predicted - low, high - predicted], fmt="o", ms=3, lw=0.5, alpha=0.7)
    ends = [measured.min(), measured.max()] if len(measured) else [1.0, 10.0]
    axes.plot(ends, ends, color="0.4", lw=1)
    return _saved(axes, path, bool(len(rows)))


def residual_plot(rows: pl.DataFrame, path: str | Path) -> Path:
    """Measured over predicted, with the intervals about 1, in order of predicted throughput."""
    axes = _axes("predicted, tokens/s per device", "measured / predicted")
    rows = rows.sort("predicted")
    measured, predicted, low, high = (_column(rows, n) for n in ("measured", "predicted", "low", "high"))
    axes.vlines(predicted, low / predicted, high / predicted, color="0.8", lw=1)
    outside = (measured < low) | (measured > high)
    for part, colour in ((~outside, "C0"), (outside, "C3")):
        axes.scatter(predicted[part], (measured / predicted)[part], s=9, color=colour)
    axes.axhline(1.0, color="0.4", lw=1)
    return _saved(axes, path, bool(len(rows)))


def attribution_plot(shares: Mapping[str, float], path: str | Path) -> Path:
    """Bars of the largest ``shares`` as from :func:`pretune.model.attribution.attributions`."""
    axes = _axes("mean absolute effect on throughput, %", "")
    most = sorted(shares.items(), key=lambda item: item[1])[-BARS:]
    axes.barh([name for name, _ in most], [100 * share for _, share in most])
    return _saved(axes, path, logarithmic=False)


def cascade_plot(
    efficiencies: Mapping[str, Sequence[float]],
    title: str,
    path: str | Path,
    efficiency: str = "share of the best known",
) -> Path:
    """For each policy: the efficiency on its best, second best, ... platform, and the harmonic mean so far.

    A figure of Sewall et al. 2020 (P3HPC at SC'20). Lines differ by marker, too.
    """
    axes = _axes("platforms, the best first", efficiency)
    for number, (name, values) in enumerate(efficiencies.items()):
        ordered = np.sort(values)[::-1]
        counts = np.arange(1, len(ordered) + 1)
        so_far = [k / np.sum(1 / ordered[:k]) if ordered[k - 1] > 0 else 0.0 for k in counts]
        style: dict[str, Any] = {"color": f"C{number}", "marker": "osD^vPX*hd"[number % 10], "ms": 4}
        axes.plot(counts, ordered, lw=0.8, ls=":", **style)
        axes.plot(counts, so_far, lw=1.5, label=name, **style)
    axes.set(
        title=title, ylim=(0, 1.05), xticks=range(1, 1 + max(map(len, efficiencies.values()), default=1))
    )
    axes.legend(fontsize=7, title="solid: harmonic mean so far; dotted: each", title_fontsize=7)
    return _saved(axes, path, logarithmic=False)


def _column(rows: pl.DataFrame, name: str) -> np.ndarray:
    return rows[name].to_numpy()


def _axes(x: str, y: str) -> Axes:
    from matplotlib.figure import Figure  # no pyplot: no window, no state

    axes = Figure(figsize=(5, 5), layout="constrained").add_subplot()
    axes.set(xlabel=x, ylabel=y)
    return axes


def _saved(axes: Axes, path: str | Path, logarithmic: bool) -> Path:
    if logarithmic:  # without a row there is no logarithm to show
        axes.set(xscale="log", yscale="log")
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(path, dpi=120)
    return Path(path)
