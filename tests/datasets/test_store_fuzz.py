"""Whatever happens to the bytes of a file, the store names it and goes on."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_trials import sample_trial

from pretune.datasets import Knobs, Status, TrialStore
from pretune.datasets.schema import to_table
from pretune.errors import StoreWarning

EXAMPLES = int(os.environ.get("PRETUNE_FUZZ_EXAMPLES", "150"))
GOOD = sample_trial("good", platform="other")
cuts = st.tuples(st.just("cut"), st.floats(0, 1), st.just(b""))
overwrites = st.tuples(st.just("put"), st.floats(0, 1), st.binary(min_size=1, max_size=12))
insertions = st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=12))
mutilations = st.lists(cuts | overwrites | insertions, min_size=1, max_size=5)


def mutilated(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, new in changes:
        at = int(where * len(data))
        rest = {"cut": b"", "put": data[at + len(new) :], "insert": data[at:]}[kind]
        data = data[:at] + new + rest
    return data


@pytest.fixture(scope="module")
def sound(tmp_path_factory: Any) -> tuple[TrialStore, Path]:
    store = TrialStore(tmp_path_factory.mktemp("store"))
    some = [sample_trial(f"t{n}", knobs=Knobs(micro_batch=n + 1, mode="x" * n)) for n in range(8)]
    (path,) = store.append([*some, sample_trial("f", status=Status.OOM)])
    store.append(GOOD)
    path.with_suffix(".sound").write_bytes(path.read_bytes())
    return store, path


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(mutilations)
def test_a_mutilated_file_costs_its_own_trials_at_most(sound: Any, changes: Any) -> None:
    store, path = sound
    path.write_bytes(mutilated(path.with_suffix(".sound").read_bytes(), changes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        assert GOOD in list(store.trials())
        assert "good" in store.frame(places=True)["trial_id"].to_list()
        assert len(store) >= 1
    for fault in store.validate():
        assert "\n" not in str(fault)


ODD = [
    pa.array([None, None]),
    pa.array([True, None]),
    pa.array([-1, 2**62]),
    pa.array([0, 2**64 - 1], pa.uint64()),
    pa.array([float("nan"), 1e300]),
    pa.array([1.5, None], pa.float32()),
    pa.array(["", "\x00\n"]),
    pa.array(["ok", "ok"]).dictionary_encode(),
    pa.array([b"\xff", b""]),
    pa.array([[1.0], None]),
    pa.array([["a"], []], pa.large_list(pa.string())),
    pa.array([{"a": 1}, None]),
    pa.array([0, 2**62], pa.timestamp("ms")),
    pa.array([0, 2**60], pa.timestamp("us", "UTC")),
    pa.array([0, -1], pa.timestamp("ns", "Asia/Tokyo")),
    pa.array([1, 2], pa.date32()),
    pa.array([1, 2], pa.duration("us")),
]
COLUMNS = [*to_table([sample_trial("a")]).column_names, "knob.mine", "knob.micro_batch", "counter.x", "extra"]


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), st.sampled_from(ODD) | st.none(), max_size=4), st.booleans())
def test_a_file_of_any_columns_is_read_or_named(tmp_path_factory: Any, changes: Any, stamped: bool) -> None:
    table = to_table([sample_trial("a"), sample_trial("b")])
    for name, values in changes.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        if values is not None:
            table = table.append_column(name, values)
    store = TrialStore(tmp_path_factory.mktemp("store"))
    (path,) = store.append(sample_trial("a"))
    pq.write_table(table if stamped else table.replace_schema_metadata(None), path)
    store.append(GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        trials, frame = list(store.trials()), store.frame(places=True)
    assert GOOD in trials
    assert {trial.trial_id for trial in trials} <= set(frame["trial_id"])
    whole = {fault.file for fault in store.validate() if fault.row is None}
    unread = str(path) not in set(frame["store.file"])
    assert unread <= (str(path) in whole)
    assert str(path) not in whole or "a" not in {trial.trial_id for trial in trials}
