"""FSDP2 under torchtitan: which configurations are legal, what they issue, and the file that they become."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pretune.datasets import Accelerator, Knobs, Platform, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.presets import model

FSDP = framework("fsdp")
GOLDEN = Path(__file__).parent / "golden" / "torchtitan_everything.toml"
PLATFORM = Platform(
    name="cluster", accelerator=Accelerator(name="gpu"), devices_per_node=8, nodes=4, backend="nccl"
)
JOB = Workload(model=model("llama-2-7b"), sequence_length=4096, global_batch_tokens=4096 * 64)


def said(**knobs: object) -> list[str]:
    return [str(each) for each in FSDP.problems(JOB, PLATFORM, Knobs.model_validate(knobs))]


def resolved(**knobs: object) -> Knobs:
    return FSDP.resolve(JOB, PLATFORM, Knobs.model_validate(knobs), own_script=True)


def written(**knobs: object) -> str:
    return FSDP.files(JOB, PLATFORM, resolved(**knobs))["train.toml"]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"dp_shard": 8, "dp_replicate": 2}, "dp_shard: dp_replicate 2 x dp_shard 8 = 16, but dp is 32"),
        ({"dp_shard": 5}, "dp_shard: dp_replicate 6 x dp_shard 5 = 30, but dp is 32; nearest: 4, 8"),
        ({"zero_stage": 2}, "zero_stage: 2 is not what dp_shard 32 makes of it; nearest: 3"),
        (
            {"dp_shard": 1, "tp": 2},
            "dp_shard: weights that are only replicated are not split by tp or pp too",
        ),
        ({"dp_shard": 1, "offload_optimizer": "cpu"}, "offload_optimizer: cpu needs sharded weights"),
        ({"communication_data_type": "bf16"}, "communication_data_type: gradients are reduced in fp32 only"),
        ({"precision": "fp16"}, "precision: fp16 is not what torchtitan trains in"),
        ({"sequence_parallel": True}, "sequence_parallel: is on exactly where tp is above 1; nearest: False"),
        ({"pp": 16, "vp": 4}, "vp: 64 stages are more than 32 layers, embeddings and output; nearest: 2"),
        ({"pp": 4, "vp": 5}, "vp: 34 layers, embeddings and output do not make 20 stages of equally many"),
        ({"pp": 2, "pipeline_schedule": "ZBVZeroBubble"}, "ZBVZeroBubble does not run 1 chunks per rank"),
        (
            {"pp": 8, "micro_batch": 4},
            "accumulation: 1F1B needs as many micro batches as the 8 stages, not 4",
        ),
        ({"pp": 2, "vp": 2, "micro_batch": 4, "dp": 16, "accumulation": 1}, ""),
        ({"async_tp": True, "tp": 2}, "async_tp: needs compile and tp above 1"),
        ({"float8_recipe": "rowwise"}, "float8_recipe: needs precision fp8"),
        ({"precision": "fp8", "float8_recipe": "rowwise", "float8_all_gather": True}, "float8_all_gather"),
        ({"tp": 4, "expert_tp": 2}, "expert_tp: 2 is neither 1 nor tp 4"),
        ({"selective_every": 0}, "selective_every: 0 is not a positive whole number; nearest: 2"),
    ],
)
def test_what_torchtitan_refuses(knobs: dict, message: str) -> None:
    if message:
        assert [text for text in said(**knobs) if message in text], said(**knobs)
    else:
        assert said(**knobs) == []


def test_what_splits_the_model_needs_a_script_and_the_version_whose_file_is_written() -> None:
    assert FSDP.refusals(JOB, PLATFORM, Knobs(micro_batch=1)) == []
    (problem,) = FSDP.refusals(JOB, PLATFORM, Knobs(micro_batch=1, tp=2, sequence_parallel=True))[:1]
    assert "the trial program runs dp of this framework only" in str(problem)
    (problem,) = FSDP.version_problems(Knobs(), "0.3.0")
    assert str(problem) == (
        "framework: torchtitan 0.3.0 is installed; train.toml is what torchtitan 0.2 reads"
    )
    assert FSDP.version_problems(Knobs(), "0.2.2") == []


def test_hybrid_sharding_follows_from_either_degree() -> None:
    for asked in ({"dp_shard": 8}, {"dp_replicate": 4}):
        told = resolved(**asked).settings()
        assert (told["dp"], told["dp_shard"], told["dp_replicate"], told["zero_stage"]) == (32, 8, 4, 3)
    assert resolved(dp_shard=1).zero_stage == 0


def test_with_a_pipeline_the_window_is_the_local_batch() -> None:
    plain = tomllib.loads(written(micro_batch=1, tp=2))
    assert (plain["training"]["local_batch_size"], plain["training"]["global_batch_size"]) == (1, 64)
    piped = tomllib.loads(written(micro_batch=1, pp=4, vp=2))
    assert piped["training"]["local_batch_size"] == 8
    assert piped["parallelism"]["pipeline_parallel_microbatch_size"] == 1
    assert piped["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"


CONFIGURATIONS = st.fixed_dictionaries(
    {
        "micro_batch": st.sampled_from([1, 2, 4]),
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "vp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "dp_shard": st.sampled_from([1, 2, 4, 8]),
        "reshard_after_forward": st.sampled_from(["default", "always", "never"]),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "compile": st.booleans(),
        "precision": st.sampled_from(["bf16", "fp32", "fp8"]),
    }
)


@given(settings=CONFIGURATIONS)
def test_the_file_multiplies_to_the_devices_and_to_the_batch(settings: dict) -> None:
    wanted = Knobs(**settings)
    assume(not FSDP.problems(JOB, PLATFORM, wanted))
    knobs = resolved(**settings)
    read = tomllib.loads(written(**settings))
    degrees = [read["parallelism"][f"{name}_degree"] for name in (
        "data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel",
        "context_parallel",
    )]  # fmt: skip
    product = 1
    for degree in degrees:
        product *= degree
    assert product == PLATFORM.devices
    window = read["training"]["local_batch_size"] * degrees[0] * degrees[1]
    steps = 1 if knobs.pp > 1 else knobs.accumulation
    assert window * steps == read["training"]["global_batch_size"]


def test_hybrid_sharding_reduces_every_shard_over_its_copies() -> None:
    whole = {each.op: each for each in FSDP.collectives(JOB, PLATFORM, resolved(micro_batch=1))}
    hybrid = {each.op: each for each in FSDP.collectives(JOB, PLATFORM, resolved(micro_batch=1, dp_shard=8))}
    assert set(hybrid) - set(whole) == {"all_reduce"}
    assert hybrid["all_reduce"].bytes == hybrid["reduce_scatter"].bytes // 8
    never = FSDP.collectives(JOB, PLATFORM, resolved(micro_batch=1, reshard_after_forward="never"))
    assert never[0].bytes == 2 * 2 * JOB.model.parameters  # two micro batches, 16 bits
    assert never[0].bytes < whole["all_gather"].bytes < 2 * never[0].bytes
    (replicated,) = FSDP.collectives(JOB, PLATFORM, resolved(micro_batch=1, dp_shard=1))
    assert (replicated.op, replicated.bytes) == ("all_reduce", 2 * 4 * JOB.model.parameters)


EVERYTHING = {
    "micro_batch": 1, "tp": 2, "pp": 4, "vp": 2, "cp": 2, "dp_shard": 2, "reshard_after_forward": "never",
    "async_tp": True, "compile": True, "activation_checkpointing": "selective", "selective_operations": True,
    "precision": "fp8", "float8_all_gather": True, "cp_rotate_method": "alltoall",
    "pipeline_schedule": "InterleavedZeroBubble", "offload_optimizer": "cpu", "optimizer_kernel": "foreach",
}  # fmt: skip


def test_the_file_is_as_it_was() -> None:
    """Golden: torchtitan 0.2.2's own parser read it."""
    assert written(**EVERYTHING) == GOLDEN.read_text()


def test_torchtitans_own_parser_reads_it(tmp_path: Path) -> None:
    config = pytest.importorskip("torchtitan.config", reason="torchtitan 0.2 is not installed")
    path = tmp_path / "train.toml"
    path.write_text(written(**EVERYTHING))
    read = config.ConfigManager().parse_args(["--job.config_file", str(path)])
    assert (read.parallelism.pipeline_parallel_degree, read.training.local_batch_size) == (4, 32)
    assert read.quantize.linear.float8.enable_fsdp_float8_all_gather
