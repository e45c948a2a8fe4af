"""The space: declared knobs with their constraints, enumerated to the configurations that can run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import polars as pl
from pydantic import Field, model_validator

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.frameworks.base import Framework
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.schema import HOW_IT_RAN, core_schema, flatten
from pretune.datasets.spec import Spec
from pretune.datasets.trial import TrialSpec
from pretune.datasets.workload import Workload
from pretune.errors import InputError

SAME = "the same as another configuration once defaults are filled in"
MOST_COMBINATIONS = 5_000_000
_BESIDE = ("row", "same_as_another")

Key = frozenset[tuple[str, KnobValue]]


def key(knobs: Knobs) -> Key:
    """What makes two configurations the same one: equal knobs, whatever their order."""
    return frozenset(knobs.settings().items())


class Configurations(Sequence[Knobs]):
    """Configurations as a table (n rows, a column per knob, null where not set), each made when asked for."""

    def __init__(self, table: pl.DataFrame) -> None:
        order = [*Knobs.model_fields, *sorted(table.columns)]
        self.table = table.select(name for name in dict.fromkeys(order) if name in table.columns)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Configurations(self.table[at])
        told = self.table.row(range(len(self.table))[at], named=True)
        return Knobs(**{name: value for name, value in told.items() if value is not None})


@dataclass(frozen=True)
class Candidates:
    """The configurations to choose from: resolved, legal and all different.

    ``dropped`` counts, per reason, the combinations of the space that are not here.
    """

    workload: Workload
    platform: Platform
    framework: str
    knobs: Sequence[Knobs]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.knobs)

    @cached_property
    def _table(self) -> pl.DataFrame:
        if isinstance(self.knobs, Configurations):
            return self.knobs.table
        return pl.DataFrame([knobs.settings() for knobs in self.knobs], infer_schema_length=None)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """(n rows) in the store's columns: ``knob.*``, and the constant ones of workload and platform."""
        types = pl.DataFrame(core_schema().empty_table()).schema
        constants = [pl.lit(value, types[name]).alias(name) for name, value in self._constants().items()]
        return self._table.rename(lambda name: f"knob.{name}").with_columns(constants)

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
        return {n: v for n, v in row.items() if n not in of_the_run and not n.startswith(HOW_IT_RAN)}

    def values(self) -> dict[str, list[KnobValue | None]]:
        """The different values of each knob."""
        return {name: self._table[name].unique().to_list() for name in self._table.columns}

    def alike(self, settings: Mapping[str, KnobValue], names: Collection[str]) -> list[int]:
        """The rows that have these settings of the knobs in ``names``."""
        table = self._table
        same = [pl.col(n).eq_missing(pl.lit(settings.get(n))) for n in names if n in table.columns]
        found = table.select(pl.arg_where(pl.all_horizontal(same) if same else pl.lit(True)))
        return [int(row) for row in found.to_series()]

    def row_of(self, knobs: Knobs) -> int | None:
        """The row with exactly these resolved knobs; None when it is not among the candidates."""
        told, table = knobs.settings(), self._table
        if not told.keys() <= set(table.columns):
            return None
        same = [pl.col(name).eq_missing(pl.lit(told.get(name))) for name in table.columns]
        found = table.select(pl.arg_where(pl.all_horizontal(same))).to_series()
        return int(found[0]) if len(found) else None


def _resolved(columns: Collection[str]) -> list[pl.Expr]:
    """The knobs of each configuration: a free one as the space has it, unless it is not read."""
    found = []
    names = {
        name.removeprefix(kind) for name in columns for kind in ("to.", "default.") if name.startswith(kind)
    }
    for name in sorted(names):
        if f"default.{name}" in columns:
            stock = pl.col(f"to.{name}") if f"to.{name}" in columns else pl.lit(None)
            found.append(pl.when(pl.col(f"default.{name}")).then(stock).otherwise(pl.col(name)).alias(name))
        else:
            found.append(pl.col(f"to.{name}").alias(name))
    return found


def _values(given: Any) -> Any:
    """The values of one knob as a list: a single one, or whatever else holds several."""
    if hasattr(given, "tolist"):  # of numpy: its own integers are no knob values
        given = given.tolist()
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else [given]


class Space(Spec):
    """Knobs with the values to try, and SQL conditions over them that every configuration meets.

    A knob that a configuration does not read is at its default there, so that combinations which
    would run the same are one.

    A condition is any expression that polars' SQL reads, such as ``zero_stage = 3 OR
    micro_batch <= 4``; a knob with a dot in its name is quoted, ``"env.NAME"``. Knobs that
    change what is computed are refused unless ``allow_numerics``. ``own_script``: trials run a script of
    the user's, so that what pretune's trial program cannot run is legal.
    """

    knobs: dict[str, list[KnobValue]] = Field(min_length=1)
    constraints: tuple[str, ...] = ()
    allow_numerics: bool = False
    own_script: bool = False

    @model_validator(mode="before")
    @classmethod
    def _single_values(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("knobs"), dict):
            return {**data, "knobs": {name: _values(given) for name, given in data["knobs"].items()}}
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

    @classmethod
    def of(cls, space: Self | Mapping[str, Any]) -> Self:
        """A space, or one of a mapping from knobs to their values; raises :class:`InputError` otherwise."""
        if isinstance(space, cls):
            return space
        if not isinstance(space, Mapping):
            kind = type(space).__name__
            raise InputError(f"space: is a {kind}; give values by knob, as {{'BLOCK': [32, 64]}}")
        return cls.from_mapping({"knobs": dict(space)}, "space")

    @property
    def count(self) -> int:
        """Of all combinations, legal or not."""
        return math.prod(len(values) for values in self.knobs.values())

    def candidates(
        self, workload: Workload, platform: Platform, framework: str = "deepspeed", where: str = "space"
    ) -> Candidates:
        """Every configuration that meets the constraints and that the framework calls legal.

        Of a space that is too large to enumerate, those that :mod:`pretune.tuner.sampling` finds.
        Raises :class:`InputError` naming the knob or the expression, and the known names.
        """
        declared = find_framework(framework)
        self.check_knobs(declared, workload, where)
        if self.count > MOST_COMBINATIONS:
            from pretune.tuner.sampling import sampled

            return sampled(self, workload, platform, framework, where)
        return self.legal(self.grid(where), workload, platform, framework, where)

    def legal(
        self,
        combinations: tuple[pl.DataFrame, Counter[str]],
        workload: Workload,
        platform: Platform,
        framework: str,
        where: str,
    ) -> Candidates:
        """The legal ones of some ``combinations``, resolved, and all different; as :meth:`grid` makes them.

        Raises :class:`InputError` when there are none.
        """
        declared = find_framework(framework)
        grid, dropped = combinations
        judged = self._judged(grid, declared, workload, platform)
        kinds = grid.join(judged, on=self._bound(declared), how="left", maintain_order="left")
        for reason, count in kinds.drop_nulls("reason").group_by("reason", maintain_order=True).len().rows():
            dropped[reason] += count
        legal = kinds.filter(pl.col("reason").is_null())
        if legal.is_empty():
            reasons = "; ".join(f"{n} x {reason}" for reason, n in dropped.most_common(3))
            raise InputError(f"{where}: no configuration is left ({reasons}); widen knobs or constraints")
        found = legal.select("same_as_another", *_resolved(legal.columns)).with_row_index("row")
        table = found.unique(
            [n for n in found.columns if n not in _BESIDE], keep="first", maintain_order=True
        )
        twice = found.join(table, on="row", how="anti").group_by("same_as_another", maintain_order=True).len()
        for reason, count in twice.rows():
            dropped[reason] += count
        return Candidates(workload, platform, framework, Configurations(table.drop(_BESIDE)), dict(dropped))

    def _bound(self, declared: Framework) -> list[str]:
        """The knobs whose value some rule looks at; all others only take their place in what those allow."""
        known = declared.knobs
        return [name for name in self.knobs if name in known and not known[name].free] or list(self.knobs)[:1]

    def _judged(
        self, grid: pl.DataFrame, declared: Framework, workload: Workload, platform: Platform
    ) -> pl.DataFrame:
        """A row per combination of the bound knobs: the ``reason`` why it cannot run, or its resolved knobs
        (``to.NAME``), a free knob that it does not read at its default, and what makes it
        ``same_as_another``."""
        bound = self._bound(declared)
        free = [name for name in self.knobs if name not in bound]
        some = {name: values[0] for name, values in self.knobs.items() if name in free}
        rows = []
        for point in grid.select(bound).unique(maintain_order=True).iter_rows(named=True):
            wanted = Knobs(**some | point)
            problems = declared.refusals(workload, platform, wanted, self.own_script)
            if problems:
                rows.append(point | {"reason": str(problems[0])})
                continue
            unread = declared.unread(platform, wanted)
            read = Knobs(**{name: value for name, value in (some | point).items() if name not in unread})
            told = declared.filled(workload, platform, read).settings()
            resolved = {f"to.{n}": v for n, v in told.items() if n not in free or n in unread}
            varied = next((n for n in self.knobs if n in unread and len(self.knobs[n]) > 1), None)
            why = f"{varied}: {unread[varied]}" if varied else SAME
            default = {f"default.{name}": name in unread for name in free}
            rows.append(point | {"reason": None, "same_as_another": why} | default | resolved)
        columns = dict.fromkeys(name for row in rows for name in row) | {"same_as_another": None}
        types = {"reason": pl.String, "same_as_another": pl.String} | {n: grid.schema[n] for n in bound}
        types |= {f"to.{name}": grid.schema[name] for name in free}
        return pl.DataFrame(
            {name: pl.Series(name, [row.get(name) for row in rows], types.get(name)) for name in columns}
        )

    def check_knobs(self, declared: Framework, workload: Workload, where: str) -> None:
        """Raises :class:`InputError` for an unknown knob, a wrong value, or numerics that would change."""
        for name, values in self.knobs.items():
            if name.startswith("env."):
                continue
            knob = declared.knobs.get(name)
            if knob is None and self.own_script:
                continue  # whether the script takes it is for the job to say
            if knob is None:
                known = ", ".join(declared.knobs)
                raise InputError(f"{where}: {name} is no knob of {declared.name}; known: {known}, env.NAME")
            unchanged = {workload.precision, knob.default}
            if knob.numerics and not set(values) <= unchanged and not self.allow_numerics:
                raise InputError(
                    f"{where}: {name} changes what is computed, so speed alone must not choose it; "
                    "leave it out or set allow_numerics: true"
                )
            for value in values:
                Knobs.from_mapping({name: value}, where)
                for problem in knob.wrong(value):
                    raise InputError(f"{where}: {problem}")

    def grid(self, where: str = "space") -> tuple[pl.DataFrame, Counter[str]]:
        """A column per knob, a row per combination that meets the constraints; how many each one dropped.

        Raises :class:`InputError` when there are too many, and for an expression that is none.
        """
        if self.count > MOST_COMBINATIONS:
            raise InputError(
                f"{where}: {self.count} combinations are more than {MOST_COMBINATIONS}; "
                "give fewer values or knobs"
            )
        grid = pl.DataFrame()
        for name, values in self.knobs.items():
            column = pl.DataFrame({name: pl.Series(values, strict=False)})
            grid = column if grid.is_empty() else grid.join(column, how="cross", maintain_order="left_right")
        return self.constrained(grid, where)

    def constrained(self, grid: pl.DataFrame, where: str) -> tuple[pl.DataFrame, Counter[str]]:
        """The rows that meet the constraints, and how many each one dropped."""
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
