"""The contracts of the model: a physical baseline, and a surrogate of throughput.

Frames are polars frames in the columns of the trial store
(:func:`pretune.datasets.schema.core_schema` and ``knob.*``), n rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

Array = NDArray[np.float64]

INTERVAL = 0.90  # the share of trials that ``low`` to ``high`` is to cover


class Baseline(ABC):
    """What can be said of a trial from first principles. Every method is vectorised."""

    name: ClassVar[str]  # what a saved surrogate finds its baseline by

    def __repr__(self) -> str:  # stands in a surrogate's own
        return f"{type(self).__name__}()"

    @property
    @abstractmethod
    def constants(self) -> dict[str, float]:
        """What :meth:`calibrated` learned, by name."""

    @property
    @abstractmethod
    def doubt(self) -> Array:
        """(c, c) a root of the covariance of the c :attr:`constants`: what trials have not told of them.
        With them, all that tells one baseline of a name from another."""

    @abstractmethod
    def calibrated(self, frame: pl.DataFrame) -> Self:
        """The same baseline with its constants learned from n >= 0 trials; this one stays as it is."""

    @abstractmethod
    def log_throughput(self, frame: pl.DataFrame) -> Array:
        """(n,) natural log of the predicted tokens_per_s_per_device."""

    @abstractmethod
    def memory_bytes(self, frame: pl.DataFrame) -> Array:
        """(n,) predicted peak memory of the fullest device; NaN where unknown."""

    @abstractmethod
    def memory_terms(self, frame: pl.DataFrame, reported: bool = False) -> Array:
        """(n, stages, k) its parts in bytes, by the k :data:`pretune.model.physics.memory.KINDS`; NaN where
        unknown. The fullest stage is the peak; ``reported``: the stages that a trial's own figure covers."""

    @abstractmethod
    def shares(self, frame: pl.DataFrame) -> Array:
        """(n, c) shares of the step's components: how its log time moves when one component slows down."""

    @abstractmethod
    def doubts(self, frame: pl.DataFrame) -> Array:
        """(n, c) how log time moves with :attr:`doubt`: inner products are the covariance of rows."""

    @abstractmethod
    def features(self, frame: pl.DataFrame) -> pl.DataFrame:
        """(n, f) columns for trees, Float64, named with units; null where a figure is unknown."""


@dataclass(frozen=True)
class Prediction:
    """What a surrogate says of n configurations.

    ``log_mean`` (n,): natural log of tokens_per_s_per_device. ``low``, ``high`` (n,):
    tokens_per_s_per_device, a 90 % interval. ``chance_to_run`` (n,): probability that the
    trial ends with status ok. ``out_of_domain`` (n,): why a row lies outside what was
    learned; None where it does not. ``provenance``: what the figures rest on (platform ->
    weight, number of trials).
    """

    log_mean: Array
    low: Array
    high: Array
    chance_to_run: Array
    out_of_domain: list[str | None] = field(default_factory=list)
    provenance: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> Array:
        """(n,) tokens_per_s_per_device."""
        return np.exp(self.log_mean)

    def __len__(self) -> int:
        return len(self.log_mean)


class Predictor(ABC):
    """What every surrogate offers: it learns throughput from trials.

    Deterministic for a ``seed``; its parameters are scikit-learn's way.
    """

    @abstractmethod
    def fit(self, frame: pl.DataFrame) -> Self:
        """Learn from n >= 0 trials in the store's columns, failed ones included."""

    @abstractmethod
    def predict(self, frame: pl.DataFrame) -> Prediction:
        """Predict configurations; only the columns known before a trial are read."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write UBJSON and JSON (no pickle), with feature names, versions and rows to check."""

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what :meth:`save` wrote; raises :class:`InputError` when the check rows do not reproduce."""
