"""Whatever happens to the bytes of a file, the store names it and goes on."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_trials import sample_trial

from pretune.datasets import Knobs, Status, TrialStore
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
