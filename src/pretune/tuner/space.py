"""The space: declared knobs with their constraints, enumerated to the configurations that can run."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import polars as pl
from pydantic import Field, model_validator

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.frameworks.base import Framework
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.schema import core_schema, flatten
from pretune.datasets.spec import Spec
from pretune.datasets.trial import TrialSpec
from pretune.datasets.workload import Workload
from pretune.errors import InputError

SAME = "the same as another configuration once defaults are filled in"
MOST_COMBINATIONS = 200_000  # each one is resolved and judged by the framework, some 50 us apiece

Key = frozenset[tuple[str, KnobValue]]


@dataclass(frozen=True)
class Candidates:
    """The configurations to choose from: resolved, legal and all different.

    ``dropped`` counts, per reason, the combinations of the space that are not here.
    """

    workload: Workload
    platform: Platform
    framework: str
    knobs: list[Knobs]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.knobs)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """(n rows) in the store's columns: ``knob.*``, and the constant ones of workload and platform."""
        rows = [{f"knob.{name}": value for name, value in k.settings().items()} for k in self.knobs]
        types = pl.DataFrame(core_schema().empty_table()).schema
        constants = [pl.lit(value, types[name]).alias(name) for name, value in self._constants().items()]
        return pl.DataFrame(rows, infer_schema_length=None).with_columns(constants)

    def _constants(self) -> dict[str, Any]:
        spec = TrialSpec(
            trial_id="candidate",
            workload=self.workload,
            platform=self.platform,
            framework=self.framework,
            knobs=Knobs(),
        )
        of_the_run = {"trial_id", "session_id", "purpose", "seed"}
        row = flatten(spec)
        return {n: v for n, v in row.items() if n not in of_the_run and not n.startswith("measure.")}

    @cached_property
    def _rows(self) -> dict[Key, int]:
        return {key(knobs): row for row, knobs in enumerate(self.knobs)}

    def row_of(self, knobs: Knobs) -> int | None:
        """The row with exactly these resolved knobs; None when it is not among the candidates."""
        return self._rows.get(key(knobs))


def key(knobs: Knobs) -> Key:
    """What makes two configurations the same one: equal knobs, whatever their order."""
    return frozenset(knobs.settings().items())


class Space(Spec):
    """Knobs with the values to try, and SQL conditions over them that every configuration meets.

    A knob that a configuration does not read is at its default there, so that combinations which
    would run the same are one.

    A condition is any expression that polars' SQL reads, such as ``zero_stage = 3 OR
    micro_batch <= 4``; a knob with a dot in its name is quoted, ``"env.NAME"``. Knobs that
    change what is computed are refused unless ``allow_numerics``.
    """

    knobs: dict[str, list[KnobValue]] = Field(min_length=1)
    constraints: tuple[str, ...] = ()
    allow_numerics: bool = False

    @model_validator(mode="before")
    @classmethod
    def _single_values(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("knobs"), dict):
            lists = {n: v if isinstance(v, list) else [v] for n, v in data["knobs"].items()}
            return {**data, "knobs": lists}
        return data

    @model_validator(mode="after")
    def _one_type(self) -> Self:
        for name, values in self.knobs.items():
            if not values:
                raise ValueError(f"{name} has no values; give at least one, or leave the knob out")
            kinds = {type(value) for value in values}
            if len(kinds) > 1 and kinds != {int, float}:
                names = ", ".join(sorted(kind.__name__ for kind in kinds))
                raise ValueError(f"{name} mixes values of types {names}; one knob has one type")
        return self

    @property
    def count(self) -> int:
        """Of all combinations, legal or not."""
        return math.prod(len(values) for values in self.knobs.values())

    def candidates(
        self, workload: Workload, platform: Platform, framework: str = "deepspeed", where: str = "space"
    ) -> Candidates:
        """Every configuration that meets the constraints and that the framework calls legal.

        Raises :class:`InputError` naming the knob or the expression, and the known names.
        """
        declared = find_framework(framework)
        self.check_knobs(declared, workload, where)
        grid, dropped = self.grid(where)
        found: dict[Key, Knobs] = {}
        for point in grid.iter_rows(named=True):
            wanted = Knobs(**point)
            problems = declared.problems(workload, platform, wanted)
            if problems:
                dropped[str(problems[0])] += 1
                continue
            unread = declared.unread(platform, wanted)
            read = Knobs(**{name: value for name, value in point.items() if name not in unread})
            knobs = declared.filled(workload, platform, read)
            if found.setdefault(key(knobs), knobs) is not knobs:
                varied = [name for name in point if name in unread and len(self.knobs[name]) > 1]
                dropped[f"{varied[0]}: {unread[varied[0]]}" if varied else SAME] += 1
        if not found:
            reasons = "; ".join(f"{n} x {reason}" for reason, n in dropped.most_common(3))
            raise InputError(f"{where}: no configuration is left ({reasons}); widen knobs or constraints")
        return Candidates(workload, platform, framework, list(found.values()), dict(dropped))

    def check_knobs(self, declared: Framework, workload: Workload, where: str) -> None:
        """Raises :class:`InputError` for an unknown knob, a wrong value, or numerics that would change."""
        for name, values in self.knobs.items():
            if name.startswith("env."):
                continue
            knob = declared.knobs.get(name)
            if knob is None:
                known = ", ".join(declared.knobs)
                raise InputError(f"{where}: {name} is no knob of {declared.name}; known: {known}, env.NAME")
            if knob.numerics and set(values) != {workload.precision} and not self.allow_numerics:
                raise InputError(
                    f"{where}: {name} changes what is computed, so speed alone must not choose it; "
                    "leave it out or set allow_numerics: true"
                )
            for value in values:
                Knobs.from_mapping({name: value}, where)

    def grid(self, where: str = "space") -> tuple[pl.DataFrame, Counter[str]]:
        """A column per knob, a row per combination that meets the constraints; how many each one dropped.

        Raises :class:`InputError` when there are too many, and for an expression that is none.
        """
        if self.count > MOST_COMBINATIONS:
            raise InputError(
                f"{where}: {self.count} combinations are more than {MOST_COMBINATIONS}; "
                "give fewer values or knobs"
            )
        grid = pl.DataFrame(
            list(itertools.product(*self.knobs.values())), schema=list(self.knobs), orient="row"
        )
        dropped: Counter[str] = Counter()
        for expression in self.constraints:
            kept = self._filtered(grid, expression, where)
            if len(kept) < len(grid):
                dropped[f"constraint {expression}"] += len(grid) - len(kept)
            grid = kept
        return grid, dropped

    def _filtered(self, grid: pl.DataFrame, expression: str, where: str) -> pl.DataFrame:
        known = f"known names: {', '.join(self.knobs)}"
        try:
            kept = grid.select(pl.sql_expr(expression).alias("kept"))["kept"]
        except pl.exceptions.PolarsError as error:
            reason = " ".join(str(error).splitlines()[0].split())
            raise InputError(f"{where}: constraint {expression!r}: {reason}; {known}") from None
        if kept.dtype != pl.Boolean:
            raise InputError(f"{where}: constraint {expression!r} is not true or false; {known}")
        return grid.filter(kept)
