"""What a source does not state stays unknown: in a trial, in the store, and when it is to be run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sample_trials import MODEL, PLATFORM, WORKLOAD, sample_trial

from pretune.datasets import StatedModel, StatedPlatform, StatedWorkload, TrialStore
from pretune.errors import InputError

SHAPE = MODEL.model_dump(exclude={"name"})
PLACE: dict[str, Any] = {"name": "pod", "accelerator": {"name": "H100"}, "devices_per_node": 2}


@given(st.sets(st.sampled_from(sorted(SHAPE))), st.booleans())
def test_any_part_of_a_shape_may_be_unknown_and_comes_back_so(
    tmp_path_factory: pytest.TempPathFactory, unknown: set[str], batch: bool
) -> None:
    shape = {name: None if name in unknown else value for name, value in SHAPE.items()}
    workload = {"model": {"name": "m", **shape}, "sequence_length": 32}
    workload |= {"global_batch_tokens": 128} if batch else {}
    store = TrialStore(tmp_path_factory.mktemp("store"))
    trial = sample_trial("a", workload=workload)
    store.append(trial)
    (again,) = store.trials()
    assert again == trial
    assert again.workload.model.model_dump(exclude={"name"}) == shape
    assert (again.workload.precision, again.workload.optimizer) == (None, None)  # no default stands in
    assert again.workload.name == f"m-32x{4 if batch else '?'}-?"


def test_a_backend_that_nobody_states_is_no_nccl(tmp_path: Path) -> None:
    TrialStore(tmp_path).append(sample_trial("a").model_copy(update={"platform": StatedPlatform(**PLACE)}))
    (again,) = TrialStore(tmp_path).trials()
    assert again.platform.backend is None
    assert StatedPlatform(**PLACE, backend="hccl").backend == "hccl"


def test_a_trial_that_was_run_here_can_be_run_again() -> None:
    spec = sample_trial("a").spec
    assert (spec.workload, spec.platform) == (WORKLOAD, PLATFORM)


@pytest.mark.parametrize(
    ("workload", "unknown"),
    [
        ({"model": {**SHAPE, "name": "m", "vocabulary": None}}, "model.vocabulary, workload.sequence_length"),
        (WORKLOAD.model_dump() | {"precision": None}, "workload.precision"),
    ],
)
def test_one_that_is_not_whole_says_what_is_missing(workload: dict[str, Any], unknown: str) -> None:
    with pytest.raises(InputError, match=f"^trial a: its source does not state {unknown}") as caught:
        _ = sample_trial("a", workload=workload).spec
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"hidden_size": 100, "heads": 3}, "hidden_size 100 is not divisible by heads 3"),
        ({"heads": 8, "kv_heads": 3}, "nearest legal kv_heads: 2 or 4"),
        ({"experts": 4, "experts_per_token": 8}, "exceeds experts"),
        ({"layers": 0}, "greater than 0"),
    ],
)
def test_what_is_stated_must_fit_together(stated: dict[str, int], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        StatedModel(name="m", **stated)


def test_a_batch_is_whole_sequences_where_both_are_known() -> None:
    model = StatedModel(name="m")
    assert StatedWorkload(model=model, global_batch_tokens=100).name == "m-?x?-?"
    with pytest.raises(ValidationError, match="nearest: 96 or 128"):
        StatedWorkload(model=model, global_batch_tokens=100, sequence_length=32)
