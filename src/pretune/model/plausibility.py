"""Trials that no one can have measured: too far from physics, where the trials like them are not."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pretune.datasets.consistency import Finding, contradictions, located, summary, without
from pretune.datasets.store import FILE
from pretune.model.base import Array, Baseline
from pretune.model.columns import numbers, words
from pretune.model.features import Encoder
from pretune.model.physics import NoPhysics, TransformerPhysics
from pretune.model.surrogate import residuals

# A factor in throughput over physics that nothing explains: of some 6000 published trials none lies so far
# from the trials like it (the farthest 55, a job in trouble). Milliseconds taken for seconds are 1000.
BEYOND = np.log(300.0)
# ... and at least this far from the platform's middle, or the fault is its neighbours'
ASTRAY = np.log(30.0)
NEIGHBOURS = 7
EXACT = 0.25  # of log throughput: how well a factor must be the accumulation steps to be called that
SPREADS = 8.0  # ... and how many usual deviations it must be away
LEAST_STEPS = 3.0
FEWEST = 20  # trials of a platform whose usual deviation is known
REFERENCE = 5000  # trials of a platform that others are held against, at most
PHYSICAL = re.compile(r"^(peak_flops_per_s\.|fingerprint\.matmul)")


@dataclass(frozen=True)
class Examined:
    """A history without what is wrong in it: ``kept`` (m <= n rows), and every :class:`Finding`."""

    kept: pl.DataFrame
    findings: list[Finding]

    @property
    def summary(self) -> str:
        """How many trials were set aside, and why; empty where all were kept."""
        aside = {(each.file, each.row) for each in self.findings if not each.warning}
        return summary(self.findings, len(self.kept) + len(aside))


def examine(frame: pl.DataFrame, baseline: Baseline | None = None) -> Examined:
    """Set aside what contradicts itself, and then what contradicts the rest: n trials, store's columns.

    Where the frame says in which file its rows lie (:data:`~pretune.datasets.store.FILE`), so do the
    findings, and a whole file in other units is told from the platform's others.
    """
    found = contradictions(frame)
    numbered = frame.with_row_index("examined.row")
    rest = without(numbered, found)
    at = rest["examined.row"].to_list()
    more = implausible(rest, TransformerPhysics() if baseline is None else baseline)
    found += [Finding(**(vars(each) | {"row": at[each.row]})) for each in more]
    return Examined(without(frame, found), located(frame, found))


def implausible(frame: pl.DataFrame, baseline: Baseline) -> list[Finding]:
    """What no row says alone, by log(measured / physical); nothing where physics says nothing."""
    good, residual = residuals(frame.with_row_index("implausible.row"), baseline)
    at = good["implausible.row"].to_numpy()
    found = []
    names = words(good, "platform.name")
    for name in sorted(set(names)):
        of = np.flatnonzero(names == name)
        part = _of_platform(good[of], residual[of])
        found += [Finding(**(vars(each) | {"row": int(at[of[each.row]])})) for each in part]
    return sorted(found, key=lambda each: each.row)


def _of_platform(frame: pl.DataFrame, residual: Array) -> list[Finding]:
    aside, found = _files(frame, residual)
    points = Encoder(NoPhysics()).fit(frame).points(frame)
    while True:  # a row is judged by its neighbours; those that go no longer count
        left = np.flatnonzero(~aside)
        astray = left[np.abs(residual[left] - np.median(residual[left])) > ASTRAY] if len(left) else left
        away = _deviation(points, residual, left, astray)
        wrong = np.abs(away) > BEYOND
        if not wrong.any():
            break
        found += [_beyond(int(row), factor) for row, factor in zip(astray[wrong], away[wrong], strict=True)]
        aside[astray[wrong]] = True
    return found + _multiplied(frame, points, residual, left)


def _deviation(points: Array, residual: Array, known: NDArray[np.intp], at: NDArray[np.intp]) -> Array:
    """(m,) how far the rows ``at`` (m,) lie from the median of the ``known`` (k,) most like them."""
    if len(known) <= NEIGHBOURS or not len(at):
        return np.zeros(len(at))
    known = known[np.linspace(0, len(known) - 1, min(len(known), REFERENCE)).astype(int)]
    nearest = known[cKDTree(points[known]).query(points[at], k=NEIGHBOURS + 1, workers=-1)[1]]
    others = np.where(nearest == at[:, None], np.nan, residual[nearest])
    return np.asarray(residual[at] - np.nanmedian(others, axis=1))


def _beyond(row: int, log_factor: float) -> Finding:
    how = f"{np.exp(abs(log_factor)):.3g} times {'above' if log_factor > 0 else 'below'} trials like it"
    return Finding(
        row,
        "tokens_per_s_per_device",
        "is beyond what physics and the trials like it allow",
        how,
        "check the units (tokens, seconds) and the columns' order",
    )


def _multiplied(frame: pl.DataFrame, points: Array, residual: Array, left: NDArray[np.intp]) -> list[Finding]:
    """Rows that are off by exactly their accumulation steps, where the platform's others are not off."""
    if len(left) < FEWEST:
        return []
    away = _deviation(points, residual, left, left)
    steps = numbers(frame, "knob.accumulation", 1.0)[left]
    usual = max(1.48 * float(np.median(np.abs(away))), 0.05)
    exact = np.abs(away - np.log(np.maximum(steps, 1.0))) < EXACT
    return [
        Finding(
            int(row),
            "tokens_per_s_per_device",
            "is the accumulation steps times that of trials like it",
            f"{np.exp(factor):.3g} times, with {count:g} steps",
            "count the tokens of a window once, over the time of the whole window",
        )
        for row, factor, count, wrong in zip(
            left, away, steps, exact & (steps >= LEAST_STEPS) & (away > SPREADS * usual), strict=True
        )
        if wrong
    ]


def _files(frame: pl.DataFrame, residual: Array) -> tuple[NDArray[np.bool_], list[Finding]]:
    """(n,) rows of files that disagree with the platform's other files, and what is to be said of them.

    The one farther from physics is the wrong one. Alone on its platform, a file cannot be told from a
    platform that physics misjudges: that is a warning.
    """
    aside, found = np.zeros(len(residual), dtype=bool), []
    files = words(frame, FILE if FILE in frame.columns else "source")
    middles = {name: float(np.median(residual[files == name])) for name in sorted(set(files))}
    known = _rate_known(frame)
    for name, middle in middles.items():
        of = files == name
        others = residual[~of]
        lone = len(others) == 0 and bool(known.all())
        off = middle - (float(np.median(others)) if len(others) else 0.0)
        if abs(off) <= BEYOND or abs(middle) <= BEYOND or not (len(others) or lone):
            continue
        share = f"{np.exp(middle):.2g} of what physics expects"
        reason = (
            "of the whole file is implausible"
            if lone
            else "of the whole file contradicts the platform's others"
        )
        remedy = "check its units: seconds, tokens, per device"
        found += [
            Finding(int(row), "tokens_per_s_per_device", reason, share, remedy, warning=lone)
            for row in np.flatnonzero(of)
        ]
        aside |= of & (not lone)
    return aside, found


def _rate_known(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """(n,) the device's speed is stated or was probed; else physics rests on an assumption."""
    stated = [numbers(frame, name) for name in frame.columns if PHYSICAL.match(name)]
    found: NDArray[np.bool_] = np.any([np.isfinite(each) for each in stated], axis=0)
    return found if stated else np.zeros(len(frame), dtype=bool)
