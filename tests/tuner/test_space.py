from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.datasets import Knobs
from pretune.datasets.frameworks import framework
from pretune.datasets.schema import core_schema
from pretune.errors import InputError
from pretune.tuner.space import Space, key


def test_candidates_are_resolved_legal_and_in_the_stores_columns(workload, target):
    found = Space(knobs={"micro_batch": [1, 2, 4], "zero_stage": [0, 3]}).candidates(workload, target)
    assert len(found) == 6
    frame = found.frame
    assert frame["knob.accumulation"].to_list() == [8, 8, 4, 4, 2, 2]
    assert frame["platform.name"].unique().to_list() == [target.name]
    assert frame["workload.sequence_length"].unique().to_list() == [1024]
    known = set(core_schema().names)
    assert all(name in known or name.startswith("knob.") for name in frame.columns)
    assert found.row_of(found.knobs[4]) == 4
    assert found.row_of(Knobs(micro_batch=4)) is None


def test_illegal_configurations_are_dropped_with_a_count_per_reason(workload, target):
    space = Space(
        knobs={"micro_batch": [1, 3, 8], "zero_stage": [0, 1], "offload_optimizer": ["none", "cpu"]}
    )
    found = space.candidates(workload, target)
    assert len(found) == 2 * 3
    assert sum(found.dropped.values()) == 3 * 2 * 2 - len(found)
    assert [n for reason, n in found.dropped.items() if reason.startswith("offload_optimizer")] == [2]


def test_what_a_default_makes_equal_is_there_once(workload, target):
    space = Space(knobs={"micro_batch": [2], "accumulation": [4], "dp": [2]})
    twice = Space(knobs={"micro_batch": [2, 2]}).candidates(workload, target)
    assert len(space.candidates(workload, target)) == len(twice) == 1
    assert list(twice.dropped.values()) == [1]


def test_a_knob_that_is_not_read_is_not_varied(workload, target):
    """Neither what the stage does not read, nor what the backend makes inert."""
    knobs = {
        "zero_stage": [0, 1, 3],
        "reduce_bucket_size": [1000, 2000],
        "use_multi_rank_bucket_allreduce": [False],
        "stage3_prefetch_bucket_size": [10, 20],
        "overlap_comm": [False, True],
    }
    found = Space(knobs=knobs).candidates(workload, target)
    by_stage = Counter(k.zero_stage for k in found.knobs)
    assert by_stage == {0: 1, 1: 2, 3: 4}  # the stock values; two buckets; those, and two to prefetch
    stock = framework("deepspeed").default_knobs(workload, target)
    assert found.knobs[0].reduce_bucket_size == stock.reduce_bucket_size
    assert {k.use_multi_rank_bucket_allreduce for k in found.knobs if k.zero_stage == 1} == {False}
    assert found.dropped["reduce_bucket_size: ZeRO-0 does not read it"] == 7
    assert found.dropped["overlap_comm: the CPU accelerator has no streams to overlap on"] == 4
    assert sum(found.dropped.values()) == 3 * 2**3 - len(found)
    streams = target.model_copy(update={"backend": "nccl"})
    assert len(Space(knobs=knobs).candidates(workload, streams)) == 1 + 2 * 2 + 2**3


def test_constraints_are_sql_over_knob_names(workload, target):
    space = Space(
        knobs={"micro_batch": [1, 2, 4], "zero_stage": [0, 1], "env.TORCH_NCCL_X": ["a", "b"]},
        constraints=["zero_stage = 0 OR micro_batch <= 2", "\"env.TORCH_NCCL_X\" = 'a'"],
    )
    found = space.candidates(workload, target)
    assert {(k.micro_batch, k.zero_stage) for k in found.knobs} == {(1, 0), (2, 0), (4, 0), (1, 1), (2, 1)}
    assert found.dropped["constraint zero_stage = 0 OR micro_batch <= 2"] == 2
    assert found.knobs[0].environment() == {"TORCH_NCCL_X": "a"}


@pytest.mark.parametrize(
    ("knobs", "options", "message"),
    [
        ({"micro_bath": [1]}, {}, r"micro_bath is no knob of deepspeed; known: micro_batch, "),
        ({"zero_stage": [0, 7]}, {}, r"here: zero_stage: .* got 7"),
        ({"micro_batch": [1, "two"]}, {}, r"micro_batch mixes values of types int, str"),
        ({"micro_batch": []}, {}, r"micro_batch has no values"),
        ({"precision": ["fp32", "bf16"]}, {}, r"precision changes what is computed.*allow_numerics: true"),
        ({"precision": "bf16"}, {}, r"precision changes what is computed.*allow_numerics: true"),
        ({"micro_batch": [1]}, {"constraints": ["zero = 1"]}, r"'zero = 1': .*known names: micro_batch"),
        ({"micro_batch": [1]}, {"constraints": ["micro_batch ="]}, r"'micro_batch =': .*known names"),
        ({"micro_batch": [1]}, {"constraints": ["micro_batch + 1"]}, r"is not true or false"),
        ({"micro_batch": [1]}, {"constraints": ["micro_batch = 'a'"]}, r"micro_batch = 'a'"),
        ({"micro_batch": [3, 5]}, {}, r"no configuration is left \(1 x .*micro_batch"),
    ],
)
def test_errors_are_one_line_and_name_the_knob_and_the_remedy(workload, target, knobs, options, message):
    with pytest.raises(InputError, match=message) as caught:
        Space.from_mapping({"knobs": knobs, **options}, "here").candidates(workload, target, where="here")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("here: ")


def test_naming_the_workloads_own_precision_changes_nothing(workload, target):
    space = Space.from_mapping({"knobs": {"precision": workload.precision}}, "here")
    assert len(space.candidates(workload, target)) == 1


def test_numerics_are_tuned_when_allowed(workload, target):
    space = Space(knobs={"precision": ["fp32", "bf16"]}, allow_numerics=True)
    assert {k.precision for k in space.candidates(workload, target).knobs} == {"fp32", "bf16"}


KNOBS = {
    "micro_batch": st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=3),
    "accumulation": st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2),
    "zero_stage": st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=4),
    "tp": st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2),
    "offload_optimizer": st.lists(st.sampled_from(["none", "cpu"]), min_size=1, max_size=2),
    "reduce_bucket_size": st.lists(st.sampled_from([1000, 500_000_000]), min_size=1, max_size=2),
    "overlap_comm": st.lists(st.booleans(), min_size=1, max_size=2),
    "stage3_prefetch_bucket_size": st.lists(st.sampled_from([10, 20]), min_size=1, max_size=2),
    "allgather_partitions": st.lists(st.booleans(), min_size=1, max_size=2),
    "torch_adam": st.lists(st.booleans(), min_size=1, max_size=2),
    "activation_checkpointing": st.lists(st.sampled_from(["none", "full"]), min_size=1, max_size=2),
    "env.X": st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2),
}


@given(st.fixed_dictionaries({}, optional=KNOBS).filter(bool), st.sampled_from(["nccl", "gloo"]))
def test_a_space_is_what_judging_each_combination_makes_of_it(workload, target, knobs, backend):
    """That free knobs are free, and that nothing is lost or doubled, by the framework's word on each one."""
    declared, platform = framework("deepspeed"), target.model_copy(update={"backend": backend})
    wanted = {}
    for values in itertools.product(*knobs.values()):
        point = dict(zip(knobs, values, strict=True))
        asked = Knobs(**point)
        if not declared.refusals(workload, platform, asked):
            unread = declared.unread(platform, asked)
            read = Knobs(**{name: value for name, value in point.items() if name not in unread})
            resolved = declared.filled(workload, platform, read)
            wanted.setdefault(key(resolved), resolved)
    try:
        found = Space(knobs=knobs).candidates(workload, platform)
    except InputError:
        assert not wanted
        return
    assert [key(each) for each in found.knobs] == list(wanted)
    assert sum(found.dropped.values()) + len(found) == math.prod(map(len, knobs.values()))
    assert all(found.row_of(each) == row for row, each in enumerate(wanted.values()))
