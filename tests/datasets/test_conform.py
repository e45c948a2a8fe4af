"""Files of other tools and versions are read to one schema, or refused by file, column and both types."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_trials import sample_trial

from pretune.datasets import Knobs, Trial, TrialStore
from pretune.datasets import conform as conforming
from pretune.datasets.conform import Misfit, conformed
from pretune.datasets.schema import core_schema, to_table
from pretune.errors import StoreWarning

PLAIN = to_table(
    [
        sample_trial("a", knobs=Knobs(micro_batch=2, blocks=7, mode="x"), seed=3),
        sample_trial("b", platform="two-ranks", step_time_s=0.25, warm=True, wall_s=7.0),
    ]
)
Change = Callable[[pa.Table], pa.Table]


def cast(name: str, target: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, table[name].cast(target))

    return change


def put(name: str, values: list, kind: pa.DataType | None = None) -> Change:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, pa.array(values, kind))

    return change


def every_string_a(kind: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        for field in table.schema:
            if field.type == pa.string():
                table = cast(field.name, kind)(table)
        return table

    return change


def same(table: pa.Table) -> pa.Table:
    return table


EXTRA = pa.array([1, 2])
HARMLESS: dict[str, Change] = {
    "as it was": same,
    "int16": cast("model.layers", pa.int16()),
    "uint8": cast("seed", pa.uint8()),
    "whole floats": cast("workload.sequence_length", pa.float64()),
    "int for float": cast("wall_s", pa.int32()),
    "knob in int8": cast("knob.blocks", pa.int8()),
    "declared knob as floats": cast("knob.micro_batch", pa.float32()),
    "decimal": cast("model.layers", pa.decimal128(22, 2)),
    "large strings": every_string_a(pa.large_string()),
    "string views": every_string_a(pa.string_view()),
    "dictionaries": every_string_a(pa.dictionary(pa.int32(), pa.string())),
    "float32": cast("tokens_per_s_per_device", pa.float32()),
    "large list": cast("window_times_s", pa.large_list(pa.float32())),
    "nanoseconds": cast("created_at", pa.timestamp("ns", "UTC")),
    "another zone": cast("created_at", pa.timestamp("us", "Asia/Tokyo")),
    "no zone": cast("created_at", pa.timestamp("us")),
    "a column missing": lambda table: table.drop_columns(["loss_last"]),
    "all null": put("loss_last", [None, None], pa.null()),
    "another order": lambda table: table.select(table.column_names[::-1]),
    "extra first": lambda table: table.add_column(0, "extra", EXTRA),
    "extra last": lambda table: table.append_column("extra", EXTRA),
}


def stored(table: pa.Table, root: Path, name: str = "x") -> TrialStore:
    folder = root / "platform=two-ranks"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f"{name}.parquet")
    return TrialStore(root)


def as_stored(table: pa.Table, root: Path) -> list[Trial]:
    return list(stored(table, root).trials())


@pytest.mark.parametrize("stamped", [True, False], ids=["our stamp", "no stamp"])
@pytest.mark.parametrize("kind", HARMLESS)
def test_what_loses_nothing_is_read_as_if_pretune_had_written_it(
    tmp_path: Path, kind: str, stamped: bool
) -> None:
    table = HARMLESS[kind](PLAIN)
    if not stamped:
        table = table.replace_schema_metadata(None)
    put_down = stored(table, tmp_path / "theirs")
    expected = as_stored(PLAIN, tmp_path / "ours")
    assert list(put_down.trials()) == expected
    assert put_down.validate() == []
    assert len(put_down) == 2
    frame = put_down.frame()
    ours = TrialStore(tmp_path / "ours").frame()
    assert {name: frame.schema[name] for name in ours.columns} == dict(ours.schema)
    assert frame.select(ours.columns).equals(ours)


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("kind", HARMLESS)
def test_it_shares_a_frame_with_the_store_s_own_files_whichever_comes_first(
    tmp_path: Path, kind: str, first: str
) -> None:
    stored(HARMLESS[kind](PLAIN), tmp_path, "0" if first == "theirs" else "9")
    store = stored(to_table([sample_trial("c"), sample_trial("d")]), tmp_path, "5")
    frame = store.frame(places=True)
    assert sorted(frame["trial_id"]) == ["a", "b", "c", "d"]
    assert sorted(frame["store.row"]) == [0, 0, 1, 1]
    assert "extra" not in frame.columns
    for field in core_schema():
        assert frame.schema[field.name] == TrialStore(tmp_path / "none").frame().schema[field.name]


REFUSED: dict[str, tuple[Change, str]] = {
    "fractions": (put("model.layers", [1.5, 2.0]), "column model.layers is double, not int64"),
    "words": (put("seed", ["7", "8"]), "column seed is string, not int64"),
    "numbers": (put("status", [1, 2]), "column status is int64, not string"),
    "flags": (put("seed", [True, False]), "column seed is bool, not int64"),
    "counts": (put("warm", [1, 0]), "column warm is int64, not bool"),
    "too large": (put("seed", [2**64 - 1, 0], pa.uint64()), "column seed is uint64, not int64"),
    "more than a float holds": (
        put("step_time_s", [2**60 + 1, 1]),
        "column step_time_s is int64, not double",
    ),
    "a year that no calendar has": (
        put("created_at", [0, 2**60], pa.timestamp("us", "Asia/Tokyo")),
        "column created_at is timestamp[us, tz=Asia/Tokyo], not timestamp[us, tz=UTC]",
    ),
    "a date in words": (put("created_at", ["2026-01-01"] * 2), "column created_at is string, not timestamp"),
    "a list of words": (put("window_times_s", [["1"], []]), "column window_times_s is list"),
    "a counter in words": (
        put("counter.net.bytes_sent", ["1", "2"]),
        "column counter.net.bytes_sent is string",
    ),
    "no ids": (lambda table: table.drop_columns(["trial_id"]), "column trial_id (string) is missing"),
    "twice": (lambda table: table.append_column("seed", EXTRA), "column seed is there 2 times"),
}


@pytest.mark.parametrize("stamped", [True, False], ids=["our stamp", "no stamp"])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_lose_something_is_refused_by_file_column_and_types(
    tmp_path: Path, kind: str, stamped: bool
) -> None:
    change, reason = REFUSED[kind]
    table = change(PLAIN)
    if not stamped:
        table = table.replace_schema_metadata(None)
    store = stored(table, tmp_path)
    (fault,) = store.validate()
    assert fault.file.endswith("x.parquet")
    assert reason in fault.reason
    for read in (store.frame, lambda: list(store.trials()), lambda: range(len(store))):
        with pytest.warns(StoreWarning, match=r"x\.parquet: ") as told:
            assert len(read()) == 0
        assert reason in str(told[0].message)


def test_a_file_that_pandas_or_polars_rewrote_is_read(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    store = stored(PLAIN, tmp_path / "ours")
    (path,) = store.files()
    for name, rewrite in {
        "pandas": lambda to: pd.read_parquet(path).to_parquet(to),
        "polars": lambda to: pl.read_parquet(path).write_parquet(to),
    }.items():
        folder = tmp_path / name / path.parent.name
        folder.mkdir(parents=True)
        rewrite(folder / "x.parquet")
        assert list(TrialStore(tmp_path / name).trials()) == list(store.trials())
        assert TrialStore(tmp_path / name).frame().equals(store.frame())


def test_nan_in_a_column_of_whole_numbers_is_what_pandas_calls_missing() -> None:
    table = put("warmup_windows", [3.0, float("nan")])(PLAIN)
    assert conformed(table)["warmup_windows"].to_pylist() == [3, None]


@settings(max_examples=200)
@given(st.lists(st.floats() | st.integers(-(2**70), 2**70).map(float), min_size=2, max_size=2))
def test_a_whole_number_never_comes_out_as_another(values: list[float]) -> None:
    try:
        found = conformed(put("seed", values, pa.float64())(PLAIN))["seed"].to_pylist()
    except Misfit:
        return
    assert [value for value in found if value is not None] == [v for v in values if v == v]


@given(st.datetimes(min_value=datetime(1700, 1, 1), max_value=datetime(2200, 1, 1)))
def test_an_instant_stays_the_same_in_every_unit(when: datetime) -> None:
    whole = when.replace(microsecond=0, tzinfo=UTC)
    for unit in ("s", "ms", "us", "ns"):
        column = pa.array([whole, whole], pa.timestamp(unit, "America/New_York"))
        table = PLAIN.set_column(PLAIN.column_names.index("created_at"), "created_at", column)
        assert conformed(table)["created_at"].to_pylist() == [whole, whole]


# -- versions -------------------------------------------------------------------------------------------
def test_a_file_of_an_older_version_is_upgraded_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two made-up steps, since no version but 1 was ever written: a column's name, then its unit."""
    names = [{"step_time_s": "step_ms"}.get(name, name) for name in PLAIN.column_names]
    old = PLAIN.rename_columns(names).replace_schema_metadata(PLAIN.schema.metadata)

    def renamed(table: pa.Table) -> pa.Table:
        return table.rename_columns([{"step_ms": "step_time_s"}.get(n, n) for n in table.column_names])

    def in_seconds(table: pa.Table) -> pa.Table:
        seconds = pa.array(
            [value and value / 1000 for value in table["step_time_s"].to_pylist()], pa.float64()
        )
        return put("step_time_s", seconds.to_pylist(), pa.float64())(table)

    store = stored(old, tmp_path)
    monkeypatch.setattr(conforming, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(conforming, "UPGRADES", {1: renamed, 2: in_seconds})
    assert [trial.step_time_s for trial in store.trials()] == [None, 0.00025]
    assert store.frame()["step_time_s"].to_list() == [None, 0.00025]
    assert store.validate() == []


def test_every_version_that_was_written_has_an_upgrade() -> None:
    assert sorted(conforming.UPGRADES) == list(range(1, conforming.SCHEMA_VERSION))
    golden = {path.name for path in Path(__file__).with_name("golden").glob("v*")}
    assert golden == {f"v{number}" for number in range(1, conforming.SCHEMA_VERSION + 1)}
