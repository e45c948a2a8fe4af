"""What goes into a store comes out of it, and what is no trial is named."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sample_trials import sample_trial

from pretune.datasets import Knobs, Status, Trial, TrialStore, shipped_history
from pretune.datasets.schema import core_schema, flatten, to_table, unflatten
from pretune.errors import StoreError, StoreWarning

GOLDEN = Path(__file__).with_name("golden")

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.from_regex(r"[a-z][a-z0-9_.]{0,12}", fullmatch=True)
amounts = st.floats(min_value=1e-9, max_value=1e18)
counts = st.integers(min_value=0, max_value=2**62)
declared = Knobs.model_fields.keys()
knobs = st.builds(
    lambda set_, extra: Knobs.model_validate({**extra, **set_}),
    st.fixed_dictionaries(
        {},
        optional={
            "micro_batch": st.integers(1, 2**31),
            "zero_stage": st.sampled_from([0, 1, 2, 3]),
            "overlap_comm": st.booleans(),
            "precision": st.sampled_from(["fp32", "bf16"]),
            "attention": words,
            "stage3_param_persistence_threshold": st.integers(-(2**62), 2**62),
        },
    ),
    st.dictionaries(
        names.filter(lambda name: name not in declared),
        st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | words,
        max_size=3,
    ),
)
endings = st.fixed_dictionaries(
    {
        "status": st.sampled_from([status for status in Status if status is not Status.OK]),
        "cause": words.filter(bool),
    }
) | amounts.map(lambda each: {"tokens_per_s_per_device": each, "tokens_per_s": 2 * each})
trials = st.builds(
    lambda ending, **fields: sample_trial("t", **fields, **ending),
    ending=endings,
    knobs=knobs,
    created_at=st.datetimes(timezones=st.just(UTC), min_value=datetime(1971, 1, 1)),
    window_times_s=st.lists(st.floats(0, 1e9), max_size=4),
    hosts=st.lists(words, max_size=3),
    loss_last=st.none() | st.floats(allow_nan=False),
    peak_memory_device_bytes=st.none() | counts,
    warm=st.none() | st.booleans(),
    counters=st.dictionaries(names, st.floats(allow_nan=False), max_size=3),
    missing=st.dictionaries(names, words, max_size=3),
    software=st.dictionaries(names, words, max_size=3),
)


@settings(max_examples=60)
@given(trials)
def test_a_row_and_a_parquet_file_hold_the_whole_trial(tmp_path_factory: Any, trial: Trial) -> None:
    assert unflatten(flatten(trial)) == trial
    store = TrialStore(tmp_path_factory.mktemp("store"))
    store.append(trial)
    assert list(store.trials()) == [trial]
    assert store.validate() == []


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trials, min_size=2, max_size=4))
def test_trials_with_different_open_columns_share_a_frame(
    tmp_path_factory: Any, several: list[Trial]
) -> None:
    store = TrialStore(tmp_path_factory.mktemp("store"))
    mine = [
        trial.model_copy(update={"trial_id": f"t{n}", "knobs": Knobs(micro_batch=n + 1)})
        for n, trial in enumerate(several)
    ]
    for trial in mine:
        store.append(trial)
    frame = store.frame()
    assert sorted(frame["trial_id"]) == [trial.trial_id for trial in mine]
    assert {name for trial in mine for name in flatten(trial)} <= set(frame.columns)


def test_a_nan_loss_comes_back(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.append(sample_trial("d", status=Status.DIVERGED, loss_last=float("nan")))
    (trial,) = store.trials()
    assert trial.loss_last != trial.loss_last


def test_every_folder_that_an_append_makes_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()))
    store = TrialStore(tmp_path / "session" / "trials")
    (path,) = store.append(sample_trial("a"))
    assert {tmp_path, store.root.parent, store.root, path.parent} <= set(synced)


def test_appending_the_same_trials_again_changes_nothing(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    pair = [sample_trial("a"), sample_trial("b"), sample_trial("c", platform="other")]
    files = store.append(pair)
    before = [path.stat().st_mtime_ns for path in files]
    assert store.append(reversed(pair)) == files[::-1]
    assert [path.stat().st_mtime_ns for path in files] == before
    assert len(store) == 3


def test_core_columns_are_typed_and_named_once() -> None:
    schema = core_schema()
    assert len(set(schema.names)) == len(schema.names)
    for name, arrow in {
        "model.layers": pa.int64(),
        "status": pa.string(),
        "created_at": pa.timestamp("us", tz="UTC"),
        "window_times_s": pa.list_(pa.float64()),
        "platform.backend": pa.string(),
        "warm": pa.bool_(),
    }.items():
        assert schema.field(name).type == arrow


def test_other_readers_of_parquet_see_the_same_rows(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.append([sample_trial("a"), sample_trial("b", platform="other")])
    ours = store.frame()
    theirs = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(theirs["trial_id"].to_pylist()) == sorted(ours["trial_id"])
    assert set(theirs["platform"].to_pylist()) == {"two-ranks", "other"}
    lazily = pl.scan_parquet(tmp_path, hive_partitioning=True, missing_columns="insert").collect()
    assert len(lazily) == 2


def test_an_empty_store_is_an_empty_frame_with_typed_columns(tmp_path: Path) -> None:
    frame = TrialStore(tmp_path / "nothing").frame()
    assert len(frame) == 0
    assert frame.schema["model.layers"] == pl.Int64


def test_the_shipped_history_is_clean() -> None:
    """At least five platforms of 60 trials, two models, and failures, as measured."""
    trials = list(shipped_history().trials())
    platforms = Counter(trial.platform.name for trial in trials)
    assert shipped_history().validate() == []
    assert len(platforms) >= 5
    assert min(platforms.values()) >= 60
    assert len({trial.workload.model.name for trial in trials}) >= 2
    assert any(trial.status is Status.OOM for trial in trials)


# -- what is no trial ---------------------------------------------------------------
def only_fault(store: TrialStore) -> str:
    (fault,) = store.validate()
    return str(fault)


@pytest.mark.parametrize("keep", [0, 3, 500, -1])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    store = TrialStore(tmp_path)
    (path,) = store.append(sample_trial("a"))
    path.write_bytes(path.read_bytes()[:keep])
    store.append(sample_trial("b"))
    assert only_fault(store).startswith(f"{path}: is truncated or no Parquet file")
    for read in (store.frame, lambda: list(store.trials()), lambda: range(len(store))):
        with pytest.warns(StoreWarning, match=r"a\.parquet: is truncated or no Parquet file.*; left out"):
            assert len(read()) == 1


def test_damage_inside_a_whole_file_is_named(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    (path,) = store.append(sample_trial("a"))
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    store.append(sample_trial("b"))
    assert str(path) in only_fault(store)
    for read in (store.frame, lambda: list(store.trials())):
        with pytest.warns(StoreWarning, match=r"a\.parquet: .*; left out"):
            assert len(read()) == 1


def rewrite(path: Path, change: Any) -> None:
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def with_version(table: pa.Table, version: str) -> pa.Table:
    return table.replace_schema_metadata({"pretune.schema_version": version})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda t: t.replace_schema_metadata(None).drop_columns(["model.name"]),
            "has no pretune schema version and column model.name (string) is missing; import",
        ),
        (lambda t: with_version(t, "new"), "has schema version 'new', which is no number"),
        (lambda t: with_version(t, "99"), "has schema version 99, this pretune reads up to 1; upgrade"),
        (
            lambda t: t.set_column(t.column_names.index("seed"), "seed", pa.array(["7"])),
            "column seed is string, not int64: they are not of one kind",
        ),
        (lambda t: t.drop_columns(["status"]), "column status (string) is missing"),
        (
            lambda t: t.set_column(t.column_names.index("status"), "status", pa.array(["fine"])),
            "row 0: status: Input should be 'ok'",
        ),
        (
            lambda t: t.set_column(t.column_names.index("status"), "status", pa.array(["oom"])),
            "row 0: status oom needs a cause in words",
        ),
        (
            lambda t: t.set_column(
                t.column_names.index("platform.name"), "platform.name", pa.array(["elsewhere"])
            ),
            "row 0: its platform is elsewhere",
        ),
    ],
)
def test_a_foreign_file_is_named_with_its_reason(tmp_path: Path, change: Any, reason: str) -> None:
    store = TrialStore(tmp_path)
    (path,) = store.append(sample_trial("a"))
    rewrite(path, change)
    fault = only_fault(store)
    assert fault.startswith(str(path))
    assert reason in fault


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens_per_s_per_device": None}, "status ok needs tokens_per_s_per_device"),
        ({"tokens_per_s_per_device": 341.5}, "341.5 is not tokens_per_s_per_device 341.5 x 2 devices"),
        ({"status": Status.CRASH, "cause": None}, "status crash needs a cause"),
        ({"status": Status.OOM, "tokens_per_s": 1.0}, "status oom has a throughput"),
    ],
)
def test_a_trial_that_contradicts_itself_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        sample_trial("t", **fields)


def test_an_id_that_repeats_is_named_with_both_files(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    (alone,) = store.append(sample_trial("a"))
    (together,) = store.append([sample_trial("a"), sample_trial("b")])
    fault = only_fault(store)
    assert str(alone) in fault
    assert str(together) in fault


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"depth": True}, {"depth": 3}], "column knob.depth: values of types"),
        ([{"depth": 2**70}], "cannot be stored"),
        ([{"depth": "\ud800"}], "cannot be stored"),
    ],
)
def test_values_that_no_column_can_hold_are_refused_before_anything_is_written(
    tmp_path: Path, rows: list[dict], reason: str
) -> None:
    mine = [sample_trial(f"t{n}", knobs=Knobs(**row)) for n, row in enumerate(rows)]
    with pytest.raises(StoreError, match=reason):
        TrialStore(tmp_path).append(mine)
    assert TrialStore(tmp_path).files() == []


def test_whole_and_broken_numbers_of_one_knob_share_a_column() -> None:
    table = to_table([sample_trial("a", knobs=Knobs(x=1)), sample_trial("b", knobs=Knobs(x=1.5))])
    assert table.schema.field("knob.x").type == pa.float64()


# -- old files ----------------------------------------------------------------------
@pytest.mark.parametrize("writer", ["v1", "duckdb"])
def test_a_store_of_version_1_is_still_read(writer: str) -> None:
    """Written once by version 1, and rewritten by DuckDB 2.0 with other types, a column less and one more.

    Neither is ever written again: a change that breaks this needs a new version.
    """
    store = TrialStore(GOLDEN / writer)
    assert store.validate() == []
    ok, failed = store.trials()
    assert ok == sample_trial("golden-ok")
    assert (failed.trial_id, failed.status, failed.cause) == (
        "golden-oom",
        Status.OOM,
        "killed by the kernel",
    )
    assert len(store.frame()) == 2
