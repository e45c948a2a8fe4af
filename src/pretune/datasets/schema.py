"""The store's columns: one flat Arrow schema, derived from :class:`Trial`, and the way back.

A nested spec becomes columns named ``<its field>.<field>`` (``model.layers``,
``platform.nodes``, ``accelerator.memory_bytes``); the fields of a Trial itself have no
prefix. The open fields are prefixes of their own: ``knob.*``, ``counter.*``,
``missing.*`` and ``software.*``; a file holds those that its trials have, and null where one
trial has none: a counter that is None does not come back, its reason under ``missing`` does.
"""

from __future__ import annotations

import types
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin

import pyarrow as pa

from pretune.datasets.knobs import Knobs
from pretune.datasets.spec import Spec
from pretune.datasets.trial import Trial
from pretune.errors import StoreError

SCHEMA_VERSION = 1
VERSION_KEY = b"pretune.schema_version"

HOW_IT_RAN = ("measure.", "script.")  # prefixes of columns that say nothing of a configuration
# field of Trial -> column prefix; ``knobs`` is open too, since users declare knobs of their own
OPEN = {"knobs": "knob.", "counters": "counter.", "missing": "missing.", "software": "software."}
OPEN_TYPES = {"counters": pa.float64(), "missing": pa.string(), "software": pa.string()}
SCALARS = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    datetime: pa.timestamp("us", tz="UTC"),
}


def _arrow_type(annotation: Any) -> pa.DataType:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _arrow_type(next(a for a in get_args(annotation) if a is not type(None)))
    if origin is Literal:
        return SCALARS[type(get_args(annotation)[0])]
    if origin is list:
        return pa.list_(_arrow_type(get_args(annotation)[0]))
    if hasattr(annotation, "__metadata__"):  # Annotated[int, Gt(0)]
        return _arrow_type(get_args(annotation)[0])
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return pa.string()
    return SCALARS[annotation]


def _is_spec(annotation: Any) -> TypeGuard[type[Spec]]:
    return isinstance(annotation, type) and issubclass(annotation, Spec)


def _fields(spec: type[Spec], prefix: str = "") -> list[pa.Field]:
    fields: list[pa.Field] = []
    for name, info in spec.model_fields.items():
        if name in OPEN:
            continue
        if _is_spec(info.annotation):
            fields += _fields(info.annotation, f"{name}.")
        else:
            fields.append(pa.field(prefix + name, _arrow_type(info.annotation)))
    return fields


@cache
def core_schema() -> pa.Schema:
    """The columns that every file of this schema version has, with their Arrow types."""
    return pa.schema(_fields(Trial), metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})


@cache
def required_columns() -> list[str]:
    """The columns without which no row is a trial."""
    return _required(Trial)


def _required(spec: type[Spec], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, info in spec.model_fields.items():
        if name in OPEN or not info.is_required():
            continue
        nested = info.annotation
        names += _required(nested, f"{name}.") if _is_spec(nested) else [prefix + name]
    return names


@cache
def knob_types() -> dict[str, pa.DataType]:
    """Arrow types of the knobs that pretune itself declares, by column name."""
    return {f"knob.{name}": _arrow_type(info.annotation) for name, info in Knobs.model_fields.items()}


def declared_type(column: str) -> pa.DataType | None:
    """The Arrow type that a column always has; None for a knob that a user declared, and for no column."""
    index = core_schema().get_field_index(column)
    if index >= 0:
        return core_schema().field(index).type
    for field, arrow_type in OPEN_TYPES.items():
        if column.startswith(OPEN[field]):
            return arrow_type
    return knob_types().get(column)


def flatten(spec: Spec) -> dict[str, Any]:
    """One row of the store: column name -> value. Works for a Trial, and for any spec inside it."""
    row: dict[str, Any] = {}
    _flatten(spec, "", row)
    return row


def _flatten(spec: Spec, prefix: str, row: dict[str, Any]) -> None:
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if name in OPEN and not prefix:
            settings = value.settings() if isinstance(value, Knobs) else value
            row.update({OPEN[name] + key: entry for key, entry in settings.items()})
        elif isinstance(value, Spec):
            _flatten(value, f"{name}.", row)
        else:
            row[prefix + name] = str(value) if isinstance(value, StrEnum) else value


def unflatten(row: dict[str, Any]) -> Trial:
    """The Trial that a row holds; raises ``pydantic.ValidationError`` when the row is not one."""
    data = _unflatten(Trial, "", row)
    for field, prefix in OPEN.items():
        data[field] = {
            column.removeprefix(prefix): value
            for column, value in row.items()
            if column.startswith(prefix) and value is not None
        }
    if isinstance(data.get("created_at"), datetime) and data["created_at"].tzinfo is None:
        data["created_at"] = data["created_at"].replace(tzinfo=UTC)
    return Trial.model_validate(data)


def _unflatten(spec: type[Spec], prefix: str, row: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, nested, required in _members(spec):
        if name in OPEN and not prefix:
            continue
        if nested is not None:
            found = _unflatten(nested, f"{name}.", row)
            if found or required:  # where nothing is known the default says so, sooner
                data[name] = found
        elif row.get(prefix + name) is not None:
            data[name] = row[prefix + name]
    return data


@cache
def _members(spec: type[Spec]) -> list[tuple[str, type[Spec] | None, bool]]:
    """Each field's name, the spec that it is (None: a value), and whether it has no default."""
    return [
        (name, info.annotation if _is_spec(info.annotation) else None, info.is_required())
        for name, info in spec.model_fields.items()
    ]


def to_table(trials: list[Trial]) -> pa.Table:
    """The trials as one Arrow table: the core columns, then the open ones in sorted order."""
    rows = [flatten(trial) for trial in trials]
    fields = list(core_schema())
    core = {field.name for field in fields}
    fields += [
        pa.field(name, _open_type(name, [row[name] for row in rows if name in row]))
        for name in sorted({column for row in rows for column in row} - core)
    ]
    schema = pa.schema(fields, metadata=core_schema().metadata)
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise StoreError(f"trial {rows[0]['trial_id']}: cannot be stored ({error})") from None


def _open_type(column: str, values: list[Any]) -> pa.DataType:
    declared = declared_type(column)
    if declared is not None:
        return declared
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.float64()
    if len(kinds) > 1:
        raise StoreError(
            f"column {column}: values of types {sorted(k.__name__ for k in kinds)}; one knob has one type"
        )
    return SCALARS[kinds.pop()] if kinds else pa.string()
