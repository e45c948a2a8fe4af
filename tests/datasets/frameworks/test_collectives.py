"""The collectives that frameworks are said to issue. ``test_knob_effects`` holds them against real ranks."""

from __future__ import annotations

import pytest

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.frameworks.zero import buckets, gathers

MODEL = ModelSpec(name="t", layers=2, hidden_size=64, heads=2, vocabulary=512, max_positions=64)
TWO_RANKS = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo")
DEEPSPEED = framework("deepspeed")


def workload(knobs: Knobs) -> Workload:
    sequences = 4 * (knobs.accumulation or 1)
    return Workload(
        model=MODEL,
        sequence_length=32,
        global_batch_tokens=32 * sequences,
        precision=knobs.precision or "fp32",
    )


def resolved(settings: dict) -> tuple[Workload, Knobs]:
    knobs = Knobs(**{"accumulation": 1, **settings})
    return workload(knobs), DEEPSPEED.resolve(workload(knobs), TWO_RANKS, knobs)


def test_one_rank_alone_issues_nothing() -> None:
    alone = TWO_RANKS.model_copy(update={"devices_per_node": 1})
    job = workload(Knobs())
    for name in ("deepspeed", "torch_ddp"):
        one = framework(name)
        assert one.collectives(job, alone, one.default_knobs(job, alone)) == []


def test_stages_1_and_2_move_three_volumes_where_stage_0_moves_two() -> None:
    """An all-reduce moves the tensor twice, a gather once (ring algorithms)."""
    volumes = []
    for stage in (0, 1, 2):
        job, knobs = resolved({"zero_stage": stage})
        moved = sum(
            each.bytes * (2 if each.op == "all_reduce" else 1)
            for each in DEEPSPEED.collectives(job, TWO_RANKS, knobs)
        )
        volumes.append(moved / (MODEL.parameters * 4))
    assert volumes == pytest.approx([2, 3, 3], abs=1e-3)


@pytest.mark.parametrize(
    ("sizes", "limit", "count"),
    [([], 10, 0), ([5], 10, 1), ([5, 5], 10, 1), ([5, 6], 10, 2), ([20, 1], 10, 2), ([1, 20, 1], 10, 3)],
)
def test_buckets(sizes: list[int], limit: int, count: int) -> None:
    assert buckets(sizes, limit) == count


@pytest.mark.parametrize(
    ("prefetch", "live", "count"), [(1, 1000, 5), (1000, 1000, 1), (20, 1000, 3), (1000, 25, 3)]
)
def test_gathers(prefetch: int, live: int, count: int) -> None:
    assert gathers([10] * 5, prefetch, live) == count


def test_ddp_all_reduces_everything_once_a_step() -> None:
    ddp = framework("torch_ddp")
    job = workload(Knobs())
    (reduce,) = ddp.collectives(job, TWO_RANKS, ddp.default_knobs(job, TWO_RANKS))
    assert (reduce.op, reduce.bytes) == ("all_reduce", 4 * MODEL.parameters)
    small = ddp.resolve(job, TWO_RANKS, Knobs(micro_batch=1, ddp_bucket_mb=0.05))
    assert ddp.collectives(job, TWO_RANKS, small)[0].calls > reduce.calls
