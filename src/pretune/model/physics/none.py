"""No physics: a tuning table, of which nothing can be said before a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import polars as pl

from pretune.model.base import Array, Baseline
from pretune.model.physics.memory import KINDS


class NoPhysics(Baseline):
    """Throughput 1 and memory unknown, without features: everything is learned from the knobs."""

    name: ClassVar[str] = "none"
    constants: ClassVar[dict[str, float]] = {}

    doubt: ClassVar[Array] = np.zeros((0, 0))

    def __init__(self, constants: Mapping[str, float] | None = None, doubt: Array | None = None) -> None:
        """There are no ``constants``, nor ``doubt``; taken so that every baseline is made in one way."""

    def calibrated(self, frame: pl.DataFrame) -> Self:
        """Itself: there is nothing to learn."""
        return self

    def log_throughput(self, frame: pl.DataFrame) -> Array:
        return np.zeros(len(frame))

    def memory_bytes(self, frame: pl.DataFrame) -> Array:
        return np.full(len(frame), np.nan)

    def memory_terms(self, frame: pl.DataFrame, reported: bool = False) -> Array:
        return np.full((len(frame), 1, len(KINDS)), np.nan)

    def shares(self, frame: pl.DataFrame) -> Array:
        """(n, 0): there are no components."""
        return np.zeros((len(frame), 0))

    def doubts(self, frame: pl.DataFrame) -> Array:
        """(n, 0): there are no constants."""
        return np.zeros((len(frame), 0))

    def features(self, frame: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame(height=len(frame))
