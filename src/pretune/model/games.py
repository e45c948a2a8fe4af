"""Held-out models, platforms and accelerators, played as newcomers of which a few trials are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.model.base import Array
from pretune.model.columns import numbered
from pretune.model.newcomers import KNOWN, Rows
from pretune.model.surrogate import BoostedTrees, kinds_of, residuals

PLAYED_KEYS = 6  # held-out keys of each kind that are played as newcomers
PLAYED_TRIALS = (1, 3, 5)  # how many trials they then have
PLAYED_ROWS = 60  # how many others are predicted


@dataclass(frozen=True)
class Game:
    """A newcomer of a ``kind``: its ``own`` trials with their errors (n,), and the ``rest`` with what was
    ``missed`` (m,) of them; logs of measured over predicted throughput, by fits that saw none of them."""

    kind: str
    own: Rows
    error: Array
    rest: Rows
    missed: Array


def games(trees: BoostedTrees, known: pl.DataFrame, seed: int) -> Iterator[Game]:
    """Of every kind, the keys with most trials; ``trees`` were fitted on ``known``."""
    good, _ = residuals(known, trees.baseline_)
    keys, rng = kinds_of(good), np.random.default_rng(seed)
    for kind, (at, error) in trees.held_out_.items():
        at, error = at[np.isfinite(error)], error[np.isfinite(error)]
        number = numbered(keys[kind][at].to_list())
        most = np.argsort(np.bincount(number), kind="stable")[::-1][:PLAYED_KEYS]
        for one in most.tolist():
            mine = np.flatnonzero(number == one)
            if len(mine) <= max(PLAYED_TRIALS):
                continue
            of = (keys[kind] == keys[kind][int(at[mine[0]])]).to_numpy()
            seen, missed = rows_of(trees, good[at[mine]], _codes(keys, of, at[mine])), error[mine]
            for trials in PLAYED_TRIALS:
                order = rng.permutation(len(mine))
                own, rest = order[:trials], order[trials : trials + PLAYED_ROWS]
                yield Game(kind, seen[own], missed[own], seen[rest], missed[rest])


def _codes(
    keys: dict[str, pl.Series], of: NDArray[np.bool_], at: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """In what else rows ``at`` are new, if all those ``of`` the newcomer are: a platform, and its models."""
    return {
        kind: np.where(each.is_in(each.filter(~of).unique().to_list()), KNOWN, 0)[at]
        for kind, each in keys.items()
    }


def rows_of(trees: BoostedTrees, frame: pl.DataFrame, codes: dict[str, NDArray[np.int64]]) -> Rows:
    """n rows of a frame in the store's columns, whose newcomers' numbers are ``codes``."""
    baseline = trees.baseline_
    return Rows(codes, baseline.shares(frame), baseline.doubts(frame), trees.encoder_.points(frame))
