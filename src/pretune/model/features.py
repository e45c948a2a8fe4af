"""From a frame to numbers: a matrix for trees, and points in a space of distances."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.errors import InputError
from pretune.model.base import Array, Baseline
from pretune.model.columns import KNOWN_BEFORE, distinct, numbers, text, words

UNKNOWN = ""  # a string that is null
WORDS = (pl.String, pl.Categorical, pl.Enum)
FAR = 1.5  # a number this many times beyond what was seen is out of domain
# A configuration's neighbours are judged by what is chosen and what is trained, not by
# figures of the hardware, which are the same for all configurations of a platform.
CHOSEN = ("knob.", "model.", "workload.")


class Encoder:
    """Learns the columns of a frame that are known before a trial, and encodes any frame by them.

    ``names_`` (f,) are the matrix's columns in order: numbers as they are, booleans 0 and 1,
    strings one-hot by the words seen at fit, the unknown NaN; columns that were seen with one value
    only are left out; the physical baseline's features follow.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def fit(self, frame: pl.DataFrame) -> Self:
        """Learn columns, words and ranges from n >= 0 rows.

        Raises :class:`InputError` for a column of neither numbers, words nor truth values.
        """
        self.ranges_: dict[str, tuple[float, float]] = {}
        self.words_: dict[str, list[str]] = {}
        for name in sorted(filter(KNOWN_BEFORE.match, frame.columns)):
            column = frame[name]
            if column.dtype in WORDS:
                seen = sorted(set(words(frame, name)) - {UNKNOWN})
                self.words_ |= {name: seen} if seen else {}
            elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
                values = numbers(frame, name)
                known = values[np.isfinite(values)]
                self.ranges_ |= {name: (float(known.min()), float(known.max()))} if len(known) else {}
            elif column.dtype != pl.Null:
                raise InputError(f"trials: column {name} is {column.dtype}; make it a number or a word each")
        return self._named()

    def _named(self) -> Self:
        self.numeric_ = [name for name, (low, high) in self.ranges_.items() if high > low]
        self.one_hot_ = {name: seen for name, seen in self.words_.items() if len(seen) > 1}
        self.physical_ = self.baseline.features(pl.DataFrame()).columns
        columns = [f"{name}={word}" for name, seen in self.one_hot_.items() for word in seen]
        self.names_ = [*self.numeric_, *columns, *self.physical_]
        chosen = sum(name.startswith(CHOSEN) for name in [*self.numeric_, *self.one_hot_])
        self.length_ = float(np.sqrt(0.05 + 0.04 * chosen))  # so that likeness does not fade with knobs
        return self

    def matrix(self, frame: pl.DataFrame) -> Array:
        """(n, f) in the order of ``names_``."""
        parts = [numbers(frame, name) for name in self.numeric_]
        for name, seen in self.one_hot_.items():
            parts += _one_hot(frame, name, seen)
        if self.physical_:
            parts += [column.to_numpy() for column in self.baseline.features(frame)]
        return np.array(parts).T if parts else np.zeros((len(frame), 0))  # read by columns

    def stated(self, matrix: Array) -> Array:
        """(n, g) the columns of a :meth:`matrix` that the frame states, without what physics derives."""
        return matrix[:, : len(self.names_) - len(self.physical_)]

    def points(self, frame: pl.DataFrame) -> Array:
        """(n, d) workload and knobs, so that rows at distance 1 are alike to a degree of exp(-1/2).

        Numbers by the range that was seen, on a log scale where they are positive; words one-hot;
        the unknown in the middle. A value beside the only one that was seen is a whole range away.
        """
        parts = [_unit(numbers(frame, n), *seen) for n, seen in self.ranges_.items() if n.startswith(CHOSEN)]
        for name, seen in self.words_.items():
            if name.startswith(CHOSEN):
                parts += [np.nan_to_num(each, nan=0.5) / np.sqrt(2) for each in _one_hot(frame, name, seen)]
        return np.column_stack(parts) / self.length_ if parts else np.zeros((len(frame), 0))

    def beyond(self, frame: pl.DataFrame) -> Array:
        """(n,) how far the rows' :meth:`points` lie outside of the ranges that were seen; 0 inside."""
        total = np.zeros(len(frame))
        for name, (low, high) in self.ranges_.items():
            if name.startswith(CHOSEN):
                unit = _unit(numbers(frame, name, low), low, high)
                total += (unit - np.clip(unit, 0.0, float(high > low))) ** 2
        return np.asarray(np.sqrt(total) / self.length_)

    def strange(self, frame: pl.DataFrame) -> list[str | None]:
        """Why each of n rows lies outside what was seen; None where it does not."""
        found: list[tuple[str, NDArray[np.bool_]]] = []
        for name, (low, high) in self.ranges_.items():
            values = numbers(frame, name)
            # a count beside zero or one is no extrapolation worth a word
            outside = (values > FAR * max(high, 1.0)) | (values < min(low, low / FAR))
            found.append((f"{name} outside the {low:g} to {high:g} that was seen", outside))
        for name, seen in self.words_.items():
            unseen = ~text(frame, name).is_in([*seen, UNKNOWN]).to_numpy()
            found.append((f"{name} is none of {', '.join(seen)}", unseen))
        return _told([each for each in found if each[1].any()], len(frame))

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs, for JSON."""
        return {"ranges": self.ranges_, "words": self.words_, "names": self.names_}

    @classmethod
    def restore(cls, state: dict[str, Any], baseline: Baseline) -> Self:
        """Raises :class:`InputError` when this pretune would make other columns of the same state."""
        encoder = cls(baseline)
        encoder.ranges_ = {name: (low, high) for name, (low, high) in state["ranges"].items()}
        encoder.words_ = state["words"]
        if encoder._named().names_ != state["names"]:
            raise InputError("saved surrogate: its features are not those of this pretune; fit it again")
        return encoder


def _told(reasons: list[tuple[str, NDArray[np.bool_]]], count: int) -> list[str | None]:
    """For each of ``count`` rows, the reasons that hold of it in one; words are made once for rows alike."""
    if not reasons:
        return [None] * count
    first, kind = distinct([holds for _, holds in reasons], count)
    said = ["; ".join(reason for reason, holds in reasons if holds[row]) or None for row in first]
    return np.array(said, dtype=object)[kind].tolist()  # type: ignore[no-any-return]


def _one_hot(frame: pl.DataFrame, name: str, seen: list[str]) -> list[Array]:
    values = text(frame, name)
    unknown = np.where((values == UNKNOWN).to_numpy(), np.nan, 0.0)
    return [np.where((values == word).to_numpy(), 1.0, unknown) for word in seen]


def _unit(values: Array, low: float, high: float) -> Array:
    if low > 0:
        values, low, high = np.log(np.maximum(values, 1e-12)), np.log(low), np.log(high)
    scaled = (values - low) / (high - low if high > low else 1.0)
    return np.nan_to_num(np.clip(scaled, -1.0, 2.0), nan=0.5)
