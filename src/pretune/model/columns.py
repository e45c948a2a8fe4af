"""Reading a frame in the store's columns as arrays: a column that is missing is a column of unknowns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pretune.model.base import Array

# What tells two configurations apart. ``dp`` and ``accumulation`` follow from the other
# knobs and the device count, so that the same choice on more devices is still the same choice.
CONFIGURATION = re.compile(r"^(knob\.(?!dp$|accumulation$)|model\.(?!name$)|workload\.|framework$)")
MODEL = re.compile(r"^model\.(?!name$)")  # what tells two models apart
WIDTH = re.compile(r"^model\.hidden_size$")
# What is known before a trial runs. Names of platforms and models are identities, not properties.
KNOWN_BEFORE = re.compile(
    r"^(knob\.|model\.(?!name$)|workload\.|platform\.(?!name$)|accelerator\.(?!name$)|peak_flops_per_s\.|"
    r"(intra|inter)_node(_\w+)?\.(?!relative_error$)|fingerprint\.|framework$)"
)


def numbers(frame: pl.DataFrame, name: str, unknown: float = np.nan) -> Array:
    """(n,) the column as floats, booleans as 0 and 1; ``unknown`` where it is null, not finite or missing."""
    if name not in frame.columns:
        return np.full(len(frame), unknown)
    values = frame[name].cast(pl.Float64, strict=False).to_numpy()
    return np.where(np.isfinite(values), values, unknown)


def text(frame: pl.DataFrame, name: str, unknown: str = "") -> pl.Series:
    """(n,) the column as strings; ``unknown`` where it is null or missing."""
    if name not in frame.columns:
        return pl.Series([unknown], dtype=pl.String).new_from_index(0, len(frame))
    column = frame[name].cast(pl.String)
    return column.fill_null(unknown) if column.null_count() else column


def words(frame: pl.DataFrame, name: str, unknown: str = "") -> NDArray[np.object_]:
    """(n,) the same as an array of str."""
    return text(frame, name, unknown).to_numpy().astype(object)


def rows(frame: pl.DataFrame, keep: NDArray[np.bool_]) -> pl.DataFrame:
    """The rows where ``keep`` (n,) is true."""
    return frame.filter(pl.Series(keep, dtype=pl.Boolean))


def configurations(frame: pl.DataFrame) -> pl.Series:
    """n :func:`keys_of` of workload and knobs: equal for repeats and for the same choice elsewhere."""
    return keys_of(frame, CONFIGURATION)


def looked_up(keys: pl.Series, table: Mapping[str, float]) -> Array:
    """(n,) what a table says of each key; NaN where it says nothing."""
    found, known = np.full(len(keys), np.nan), keys.is_in(list(table))  # most of a search are not
    if known.any():
        told = keys.filter(known).replace_strict(list(table), list(table.values()), return_dtype=pl.Float64)
        found[known.to_numpy()] = told.to_numpy()
    return found


def keys_of(frame: pl.DataFrame, columns: re.Pattern[str]) -> pl.Series:
    """(n,) strings that are equal where all ``columns`` are.

    A knob that is null and a knob that is no column at all are the same.
    """
    names = sorted(filter(columns.match, frame.columns))
    names = [name for name in names if frame.schema[name] != pl.Null]
    if not names or frame.is_empty():
        return pl.Series([""], dtype=pl.String).new_from_index(0, len(frame))
    shown = [_shown(frame[name]) for name in names]
    # neighbours that are the same in every row are one word
    runs = groupby(shown, lambda each: isinstance(each, str))
    parts = [pl.lit("".join(map(str, run))) if same else pl.concat_str(list(run)) for same, run in runs]
    keys = pl.select(pl.concat_str(parts)).to_series()
    return keys if len(keys) == len(frame) else keys.new_from_index(0, len(frame))


def _shown(column: pl.Series) -> pl.Series | str:
    """(n,) ``name=value;``, empty where it is null, one word where all are the same; words are slow to make:
    once for each of a few values."""
    values = column.unique()
    numeric = values.dtype.is_numeric() or values.dtype == pl.Boolean
    plain = values.cast(pl.Float64).fill_nan(None) if numeric else values
    shown = (f"{column.name}=" + plain.cast(pl.String) + ";").fill_null("")
    if len(values) == 1:
        return str(shown[0])
    return column.replace_strict(values, shown).alias(column.name)


def distinct(columns: Sequence[NDArray[Any]], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of ``count`` = n rows: (k,) the first of each kind, alike in all columns; (n,) which kind each is."""
    if not columns:
        return np.zeros(min(count, 1), np.intp), np.zeros(count, np.intp)
    table = pl.DataFrame([pl.Series(str(i), column) for i, column in enumerate(columns)])
    first = table.with_row_index("row").select(pl.col("row").first().over(table.columns))
    return np.unique(first.to_series().to_numpy(), return_inverse=True)


def workload_names(frame: pl.DataFrame) -> pl.Series:
    """(n,) as :attr:`pretune.datasets.Workload.name` has it, "?" for what is unknown."""
    sequence = numbers(frame, "workload.sequence_length")
    batch = numbers(frame, "workload.global_batch_tokens") / sequence
    model, precision = (text(frame, name, "?") for name in ("model.name", "workload.precision"))
    parts = zip(model, _whole(sequence), _whole(batch), precision, strict=True)
    return pl.Series([f"{m}-{s}x{b}-{p}" for m, s, b, p in parts], dtype=pl.String)


def device_counts(frame: pl.DataFrame) -> pl.Series:
    """(n,) devices of each row's platform, as words; "?" where unknown."""
    counts = numbers(frame, "platform.devices_per_node") * numbers(frame, "platform.nodes", 1.0)
    return pl.Series(_whole(counts), dtype=pl.String)


def _whole(values: Array) -> list[str]:
    return [f"{value:.0f}" if np.isfinite(value) else "?" for value in values]


def numbered(keys: Iterable[str]) -> NDArray[np.int64]:
    """(n,) equal numbers for equal keys, from 0 in the order in which they appear."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def ran(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """(n,) trials that ended well and have a throughput to learn from."""
    throughput = numbers(frame, "tokens_per_s_per_device")
    ended_well = (text(frame, "status", "ok") == "ok").to_numpy()
    good: NDArray[np.bool_] = np.isfinite(throughput) & (throughput > 0) & ended_well
    return good
