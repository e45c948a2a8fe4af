"""From a frame to numbers: a matrix for trees, and points of a unit cube for distances."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.model.base import Array, Baseline
from pretune.model.columns import KNOWN_BEFORE, numbers, words

UNKNOWN = ""  # a string that is null
FAR = 1.5  # a number this many times beyond what was seen is out of domain
# A configuration's neighbours are judged by what is chosen and what is trained, not by
# figures of the hardware, which are the same for all configurations of a platform.
_CHOSEN = ("knob.", "model.", "workload.")


class Encoder:
    """Learns the columns of a frame that are known before a trial, and encodes any frame by them.

    Numbers as they are, booleans 0 and 1, strings one-hot by the words seen at fit; unknown is
    NaN. Columns without two different known values are left out. The physical baseline's
    features follow. ``names_`` are the matrix's columns in order.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def fit(self, frame: pl.DataFrame) -> Self:
        """Learn columns, words and ranges from n >= 0 rows."""
        self.numeric_: dict[str, tuple[float, float]] = {}
        self.words_: dict[str, list[str]] = {}
        for name in sorted(filter(KNOWN_BEFORE.match, frame.columns)):
            column = frame[name]
            if column.dtype == pl.String:
                seen = sorted(set(words(frame, name)) - {UNKNOWN})
                if seen:
                    self.words_[name] = seen
            elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
                values = numbers(frame, name)
                known = values[np.isfinite(values)]
                if len(known):
                    self.numeric_[name] = (float(known.min()), float(known.max()))
        self.physical_ = self.baseline.features(frame.head(0)).columns
        return self

    @property
    def names_(self) -> list[str]:
        """(f,) the matrix's columns, in order."""
        one_hot = [f"{name}={word}" for name, seen in self._varying_words() for word in seen]
        return [*self._varying_numbers(), *one_hot, *self.physical_]

    def _varying_numbers(self) -> list[str]:
        return [name for name, (low, high) in self.numeric_.items() if high > low]

    def _varying_words(self) -> list[tuple[str, list[str]]]:
        return [(name, seen) for name, seen in self.words_.items() if len(seen) > 1]

    def matrix(self, frame: pl.DataFrame) -> Array:
        """(n, f) in the order of ``names_``."""
        parts = [numbers(frame, name) for name in self._varying_numbers()]
        for name, seen in self._varying_words():
            parts += _one_hot(frame, name, seen)
        parts += list(self.baseline.features(frame).to_numpy().T) if self.physical_ else []
        return np.column_stack(parts) if parts else np.zeros((len(frame), 0))

    def points(self, frame: pl.DataFrame) -> Array:
        """(n, d) workload and knobs for distances: numbers to 0..1 by the range seen, on a log scale
        where they are positive; words one-hot over sqrt 2; the unknown in the middle."""
        parts = []
        for name in self._varying_numbers():
            if name.startswith(_CHOSEN):
                parts.append(_unit(numbers(frame, name), *self.numeric_[name]))
        for name, seen in self._varying_words():
            if name.startswith(_CHOSEN):
                parts += [column / np.sqrt(2) for column in _one_hot(frame, name, seen)]
        return np.column_stack(parts) if parts else np.zeros((len(frame), 0))

    def strange(self, frame: pl.DataFrame) -> list[str | None]:
        """Why each of n rows lies outside what was seen; None where it does not."""
        reasons: NDArray[np.object_] = np.full(len(frame), None, dtype=object)
        for name, (low, high) in self.numeric_.items():
            values = numbers(frame, name)
            # a count beside zero or one is no extrapolation worth a word
            outside = (values > FAR * max(high, 1.0)) | (values < min(low, low / FAR))
            self._note(reasons, outside, f"{name} outside the {low:g} to {high:g} that was seen")
        for name, seen in self.words_.items():
            unseen = ~np.isin(words(frame, name), [*seen, UNKNOWN])
            self._note(reasons, unseen, f"{name} is none of {', '.join(seen)}")
        return list(reasons)

    @staticmethod
    def _note(reasons: NDArray[np.object_], rows: NDArray[np.bool_], reason: str) -> None:
        for row in np.flatnonzero(rows):
            reasons[row] = reason if reasons[row] is None else f"{reasons[row]}; {reason}"

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs, for JSON."""
        return {"baseline": self.baseline.name, "numeric": self.numeric_, "words": self.words_}

    @classmethod
    def restore(cls, state: dict[str, Any], baseline: Baseline) -> Self:
        encoder = cls(baseline)
        encoder.numeric_ = {name: (low, high) for name, (low, high) in state["numeric"].items()}
        encoder.words_ = state["words"]
        encoder.physical_ = baseline.features(pl.DataFrame()).columns
        return encoder


def _one_hot(frame: pl.DataFrame, name: str, seen: list[str]) -> list[Array]:
    values = words(frame, name)
    unknown = np.where(values == UNKNOWN, np.nan, 0.0)
    return [np.where(values == word, 1.0, unknown) for word in seen]


def _unit(values: Array, low: float, high: float) -> Array:
    if low > 0:
        values, low, high = np.log(np.maximum(values, 1e-12)), np.log(low), np.log(high)
    return np.clip((values - low) / (high - low), -1.0, 2.0)
