"""Files of other versions and of other tools, brought to the store's one schema, or refused with the reason.

What loses nothing is taken: any width of number that fits, any string or list type, dictionaries, other
time units and zones, columns that are missing though a trial may lack them, all null, in another order, or
more than a trial has (those are not read). What would lose something is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pretune.datasets.schema import (
    OPEN,
    SCALARS,
    SCHEMA_VERSION,
    VERSION_KEY,
    core_schema,
    declared_type,
    required_columns,
)

# version n -> what makes a table of version n + 1 of one of n; no step ever goes
UPGRADES: dict[int, Callable[[pa.Table], pa.Table]] = {}


_YEAR_1_US, _YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000  # what a datetime can hold


class Misfit(ValueError):
    """Why a file holds no trials that this pretune can read."""


class NewerVersion(Misfit):
    """The file is sound, but a newer pretune wrote it."""


def version(found: pa.Schema) -> int | None:
    """The schema version that the writer stamped; None when another tool wrote the file."""
    stamp = (found.metadata or {}).get(VERSION_KEY)
    if stamp is None:
        return None
    if not stamp.isdigit():
        raise Misfit(f"has schema version {stamp.decode(errors='replace')!r}, which is no number")
    if int(stamp) > SCHEMA_VERSION:
        raise NewerVersion(
            f"has schema version {int(stamp)}, this pretune reads up to {SCHEMA_VERSION}; upgrade pretune"
        )
    return int(stamp)


def is_own(found: pa.Schema) -> bool:
    """Whether the columns are as this pretune writes them, so that nothing is to be converted.

    Raises :class:`Misfit` when the file cannot be read whatever it holds.
    """
    _check(found)
    return version(found) == SCHEMA_VERSION and all(wanted(f.name, f.type) == f.type for f in found)


def conformed(table: pa.Table) -> pa.Table:
    """The table in this version's columns; raises :class:`Misfit` naming the column and both types."""
    _check(table.schema)
    for number in range(version(table.schema) or SCHEMA_VERSION, SCHEMA_VERSION):
        table = UPGRADES[number](table)
    columns = {}
    for field in table.schema:
        target = wanted(field.name, field.type)
        if target is not None:
            columns[field.name] = _cast(table[field.name], field, target)
    return pa.table(columns, metadata=core_schema().metadata)


def wanted(name: str, found: pa.DataType) -> pa.DataType | None:
    """The type that a column is to have; None when it is none of a trial's."""
    declared = declared_type(name)
    if declared is None and name.startswith(OPEN["knobs"]):
        return _kind(found)  # a knob that a user declared
    return declared


def _check(found: pa.Schema) -> None:
    twice = [name for name, count in Counter(found.names).items() if count > 1]
    if twice:
        raise Misfit(f"column {twice[0]} is there {found.names.count(twice[0])} times; keep one")
    stamped = version(found)
    if stamped is not None and stamped < SCHEMA_VERSION:
        return  # an upgrade may make the column
    for name in required_columns():
        if name not in found.names:
            what = "" if stamped else "has no pretune schema version and "
            raise Misfit(f"{what}column {name} ({declared_type(name)}) is missing; import the file instead")


def _kind(found: pa.DataType) -> pa.DataType:
    """The type in which a knob that a user declared is kept: one of four, whatever its width."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    for kind, fits in ((bool, _is_bool), (int, pa.types.is_integer), (float, _is_number)):
        if fits(found):
            return SCALARS[kind]
    return SCALARS[str]


def _cast(column: pa.ChunkedArray, field: pa.Field, target: pa.DataType) -> pa.ChunkedArray:
    if column.type == target and not pa.types.is_timestamp(target):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        if not _same_kind(column.type, target):
            raise pa.ArrowInvalid("they are not of one kind")
        if pa.types.is_timestamp(target):
            return _instants(column, target)
        if pa.types.is_floating(column.type) and pa.types.is_integer(target):
            # pandas has NaN where a whole number is missing
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        return column.cast(target)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        reason = " ".join(str(error).split())
        raise Misfit(f"column {field.name} is {field.type}, not {target}: {reason}; write it again") from None


def _instants(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """To microseconds (what is below them says nothing of when a trial began); without a zone it is UTC."""
    # an unsafe cast would wrap around where microseconds overflow, which nanoseconds cannot
    found = column.cast(pa.timestamp("us", column.type.tz), safe=column.type.unit != "ns").cast(target)
    ends = [end for end in pc.min_max(found.cast(pa.int64())).as_py().values() if end is not None]
    if any(not _YEAR_1_US <= end < _YEAR_10000_US for end in ends):
        raise pa.ArrowInvalid("an instant lies outside the years 1 to 9999")
    return found


def _is_bool(found: pa.DataType) -> Any:
    return pa.types.is_boolean(found)


def _is_number(found: pa.DataType) -> Any:
    return pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found)


def _is_text(found: pa.DataType) -> Any:
    return pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)


def _is_list(found: pa.DataType) -> Any:
    return isinstance(found, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.ListViewType)


def _same_kind(found: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_null(found):
        return True
    if _is_list(found) and _is_list(target):
        return _same_kind(found.value_type, target.value_type)
    kinds = (_is_bool, _is_number, _is_text, pa.types.is_timestamp)
    return any(kind(found) and kind(target) for kind in kinds)
