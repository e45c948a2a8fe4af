"""The collectives that DeepSpeed is said to issue, against those that two real gloo ranks issue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.frameworks.zero import buckets, gathers

MODEL = ModelSpec(name="t", layers=2, hidden_size=64, heads=2, vocabulary=512, max_positions=64)
TWO_RANKS = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo")
DEEPSPEED = framework("deepspeed")
LOW = {"zero_stage": 3, "stage3_param_persistence_threshold": 1000}

CASES: list[dict] = [
    *({"zero_stage": stage, "precision": "fp32"} for stage in range(4)),
    *({"zero_stage": stage, "precision": "bf16"} for stage in range(4)),
    *({"zero_stage": stage, "accumulation": 2} for stage in range(4)),
    {"zero_stage": 0, "precision": "bf16", "communication_data_type": "fp32"},
    {"zero_stage": 2, "communication_data_type": "fp16"},
    {"zero_stage": 3, "communication_data_type": "bf16"},
    {"zero_stage": 2, "reduce_bucket_size": 20_000},
    {"zero_stage": 1, "reduce_bucket_size": 20_000, "reduce_scatter": False},
    {"zero_stage": 1, "reduce_bucket_size": 20_000, "use_multi_rank_bucket_allreduce": False},
    {"zero_stage": 2, "accumulation": 2, "use_multi_rank_bucket_allreduce": False},
    {"zero_stage": 2, "offload_optimizer": "cpu"},
    {"zero_stage": 3, "reduce_bucket_size": 20_000, "reduce_scatter": False},
    {"zero_stage": 3, "reduce_scatter": False, "contiguous_gradients": False},
    {**LOW, "accumulation": 2},
    {**LOW, "stage3_prefetch_bucket_size": 1},
    {**LOW, "stage3_prefetch_bucket_size": 20_000},
    {**LOW, "stage3_prefetch_bucket_size": 20_000, "stage3_max_live_parameters": 100_000},
    {**LOW, "stage3_max_live_parameters": 50_000},
]
INERT = [
    {"zero_stage": stage, name: value}
    for stage in (1, 2, 3)
    for name, value in {
        "allgather_bucket_size": 1000,
        "allgather_partitions": False,
        "overlap_comm": stage != 3,
    }.items()
]


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


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[int, int]]]:
    """What two ranks issued for each of CASES and INERT, all in one pair of processes."""
    sheets = []
    for settings in CASES + INERT:
        job, knobs = resolved(settings)
        config = json.loads(DEEPSPEED.files(job, TWO_RANKS, knobs)["ds_config.json"])
        sheets.append(
            {"model": MODEL.model_dump(), "config": config, "micro_batch": 2, "sequence_length": 32}
        )
    path = tmp_path_factory.mktemp("zero") / "cases.json"
    path.write_text(json.dumps(sheets))
    ranks = Path(__file__).with_name("zero_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(ranks), str(path)], env=environment, capture_output=True, text=True, timeout=250
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("OBSERVED ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return [in_our_words(case) for case in json.loads(lines[0].removeprefix("OBSERVED "))]


def in_our_words(logged: dict[str, list[int]]) -> dict[str, tuple[int, int]]:
    """DeepSpeed logs a gather as its input shard; we count whole tensors."""
    names = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
    return {
        names.get(op, op): (calls, size * 2 if op == "all_gather_into_tensor" else size)
        for op, (calls, size) in logged.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_what_deepspeed_issues_is_what_we_say(number: int, observed: list) -> None:
    job, knobs = resolved(CASES[number])
    said = {each.op: (each.calls, each.bytes) for each in DEEPSPEED.collectives(job, TWO_RANKS, knobs)}
    assert said == observed[number]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(INERT)), ids=[str(case) for case in INERT])
def test_knobs_declared_inert_on_gloo_change_nothing(number: int, observed: list) -> None:
    (name,) = INERT[number].keys() - {"zero_stage"}
    assert "gloo" in DEEPSPEED.knobs[name].inert
    plain = observed[CASES.index({"zero_stage": INERT[number]["zero_stage"], "precision": "fp32"})]
    assert observed[len(CASES) + number] == plain


def test_what_is_declared_inert_on_gloo_is_what_is_tested() -> None:
    declared = {name for name, each in DEEPSPEED.knobs.items() if "gloo" in each.inert}
    assert declared == {name for case in INERT for name in case} - {"zero_stage"}


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
