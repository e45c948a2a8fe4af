"""MAP.yaml: what the columns of somebody's table are called here, in which unit, and what they leave out."""

from __future__ import annotations

import math
from typing import Any, Self, get_args

import pyarrow as pa
from pydantic import Field, model_validator

from pretune.datasets import schema
from pretune.datasets.importers.complete import BESIDE, is_column
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.spec import Spec
from pretune.datasets.trial import Status

UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "%": 0.01,
}  # fmt: skip
EMPTY = {"", "na", "n/a", "nan", "none", "null", "-"}
# knobs of which "none" is a value: nothing is recomputed, nothing is offloaded
_NONE_IS_TOLD = {
    f"knob.{name}"
    for name, field in Knobs.model_fields.items()
    if "none" in (value for each in get_args(field.annotation) for value in get_args(each))
}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Mapping(Spec):
    """``columns``: column of the store -> column of the table. ``units``: column of the store -> unit that
    the table has it in. ``constants``: column of the store -> value of every row. ``status``: word of the
    table -> status of a trial. ``key``: columns that tell a row from all others; all unless given.
    """

    columns: dict[str, str] = Field(default_factory=dict)
    units: dict[str, str] = Field(default_factory=dict)
    constants: dict[str, KnobValue] = Field(default_factory=dict)
    status: dict[str, Status] = Field(default_factory=dict)
    key: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _known(self) -> Self:
        for part in ("columns", "units", "constants"):
            for name in getattr(self, part):
                if not is_column(name):
                    beside = ", ".join(BESIDE)
                    raise ValueError(
                        f"{part}.{name}: is no column of the store, nor one of {beside}; check the spelling"
                    )
        for name, unit in self.units.items():
            if unit not in UNITS:
                raise ValueError(f"units.{name}: {unit!r} is no unit; known: {', '.join(UNITS)}")
        for name, value in self.constants.items():
            try:
                typed(name, value)
            except ValueError:
                raise ValueError(f"constants.{name}: {value!r} is not what {name} is; mend it") from None
        return self

    def read(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row's values by column of the store; raises ValueError naming the column that is wrong."""
        values: dict[str, Any] = {}
        for name, column in self.columns.items():
            told = row.get(column)
            word = "" if told is None else str(told).strip().lower()
            if word == "none" and name in _NONE_IS_TOLD:
                told = word
            elif word in EMPTY:
                continue
            if name == "status":
                values[name] = self._status(str(told).strip(), column)
                continue
            try:
                values[name] = typed(name, told, UNITS[self.units.get(name, "B")])
            except ValueError:
                raise ValueError(f"{column}: {str(told)[:40]!r} is not what {name} is") from None
        return {name: value for name, value in values.items() if value is not None}

    def _status(self, word: str, column: str) -> Status:
        if word in self.status:
            return self.status[word]
        try:
            return Status(word.lower())
        except ValueError:
            raise ValueError(f"{column}: status {word!r} is unknown; name it under status in --map") from None


def typed(name: str, told: Any, unit: float = 1.0) -> Any:
    """``told`` as the type of column ``name``, times ``unit``; raises ValueError where it is none."""
    kind = BESIDE.get(name) or schema.declared_type(name)
    text = str(told).strip()
    if name.startswith("knob.env."):  # an environment variable is a word, also where it is "true"
        return text
    if kind is None:  # a knob of the user's own: a number where it looks like one
        try:
            return _typed_number(text, unit, whole=text.lstrip("+-").isdigit())
        except ValueError:
            return _TRUTH.get(text.lower(), text) if text.lower() in ("true", "false") else text
    if pa.types.is_boolean(kind):
        if text.lower() not in _TRUTH:
            raise ValueError
        return _TRUTH[text.lower()]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _typed_number(text, unit, whole=pa.types.is_integer(kind))
    return text


def _typed_number(text: str, unit: float, whole: bool) -> float | int:
    number = float(text.replace(",", "")) * unit
    if not math.isfinite(number):
        raise ValueError
    if not whole:
        return number
    if abs(number - round(number)) > 1e-6 * max(abs(number), 1) or abs(number) >= 2**63:
        raise ValueError
    return round(number)
