"""Megatron-LM: which configurations are legal, and the argument list that others read back."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.presets import model
from pretune.tuner.check import Devices, check

MEGATRON = framework("megatron")
GOLDEN = Path(__file__).parent / "golden"
DEVICES = Devices((8, 8, 8, 8))
PLATFORM = Platform(
    name="cluster", accelerator=Accelerator(name="gpu"), devices_per_node=8, nodes=4, backend="nccl"
)
DENSE = Workload(model=model("gpt-tiny"), sequence_length=128, global_batch_tokens=128 * 64)
SPARSE = Workload(
    model=ModelSpec(
        name="sparse",
        layers=8,
        hidden_size=512,
        heads=8,
        kv_heads=4,
        ffn_size=1024,
        vocabulary=50_000,
        gated_mlp=True,
        tied_embeddings=False,
        positions="rotary",
        norm="rmsnorm",
        experts=8,
        experts_per_token=2,
    ),
    sequence_length=4096,
    global_batch_tokens=4096 * 64,
)


def said(job: Workload = SPARSE, **knobs: object) -> list[str]:
    return [str(each) for each in MEGATRON.problems(job, PLATFORM, Knobs.model_validate(knobs))]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"tp": 4, "pp": 16}, "dp 1 x tp 4 x pp 16 x cp 1 = 64, but the platform has 32 devices"),
        ({"ep": 3}, "ep: experts 8 is not divisible by ep 3; nearest: 2, 4"),
        ({"tp": 4, "pp": 8, "ep": 2}, "ep: 2 x 4 ranks that share an expert's tensors do not divide the 4"),
        ({"tp": 2, "ep": 2}, "sequence_parallel: is needed by experts under tensor"),
        ({"sequence_parallel": True}, "sequence_parallel: splits norms over tensor-parallel ranks"),
        ({"tp": 2, "tp_comm_overlap": True}, "tp_comm_overlap: needs sequence_parallel and tp above 1"),
        ({"pp": 2, "vp": 2, "micro_batch": 4, "accumulation": 1}, "multiples of the 2 stages, not 1"),
        ({"pp": 2, "vp": 2, "overlap_p2p_comm": False}, "overlap_p2p_comm: two interleaved stages must"),
        ({"vp": 2}, "vp: vp 2 interleaves pipeline stages, but pp is 1"),
        ({"cp": 32, "cp_comm_type": "a2a"}, "cp_comm_type: a2a gives each of 32 ranks whole heads"),
        ({"overlap_param_gather": True}, "overlap_param_gather: needs zero_stage 1 and overlap_comm"),
        ({"zero_stage": 2}, "zero_stage: 2 also shards gradients; the distributed optimizer is stage 1"),
        ({"offload_optimizer": "cpu"}, "offload_optimizer: cpu needs zero_stage 1"),
        ({"communication_data_type": "fp16"}, "gradients of bf16 are not reduced in fp16; nearest: fp32"),
        ({"precision": "nvfp4"}, "precision: nvfp4 is not what this version writes"),
        (
            {"pp": 4, "activation_checkpointing": "full", "recompute_num_layers": 3},
            "recompute_num_layers: 3 is more than the 2 layers of a stage; nearest: 2",
        ),
        ({"recompute_method": "most"}, "recompute_method: 'most' is not known; nearest: uniform, block"),
        ({"recompute_num_layers": 0}, "recompute_num_layers: 0 is not a positive whole number; nearest: 1"),
    ],
)  # fmt: skip
def test_what_megatron_refuses(knobs: dict, message: str) -> None:
    assert [text for text in said(**knobs) if message in text], said(**knobs)


def test_a_dense_model_has_no_experts_to_group_and_its_vocabulary_is_padded() -> None:
    assert said(DENSE, moe_grouped_gemm=True) == [
        "moe_grouped_gemm: the model has no experts; nearest: False"
    ]
    odd = SPARSE.model_copy(update={"model": SPARSE.model.model_copy(update={"vocabulary": 50_001})})
    assert said(odd, tp=4) == []


def test_sequences_split_over_context_and_sequence_parallel_ranks() -> None:
    short = SPARSE.model_copy(update={"sequence_length": 8, "global_batch_tokens": 8 * 64})
    assert said(short, cp=4) == []
    assert said(short, cp=8) == ["cp: a sequence of 8 does not split into 16 pieces (as 16 would)"]
    assert said(short, cp=4, tp=4, sequence_parallel=True) == [
        "sequence_parallel: a sequence of 8 does not split into 16 pieces (as 16 would)"
    ]


def test_only_a_script_of_the_users_runs_it() -> None:
    (problem,) = MEGATRON.refusals(DENSE, PLATFORM, Knobs(micro_batch=1))
    assert "give command:" in str(problem)
    assert MEGATRON.refusals(DENSE, PLATFORM, Knobs(micro_batch=1), own_script=True) == []


def test_knobs_that_a_configuration_does_not_read_are_named() -> None:
    idle = MEGATRON.unread(
        PLATFORM, Knobs(recompute_method="block", cp_comm_type="a2a", reduce_bucket_size=7)
    )
    assert set(idle) == {"recompute_method", "cp_comm_type", "reduce_bucket_size"}
    busy = Knobs(
        **{"activation_checkpointing": "full", "recompute_method": "block"}, cp=2, cp_comm_type="a2a"
    )
    assert MEGATRON.unread(PLATFORM, busy) == {}


CONFIGURATIONS = st.fixed_dictionaries(
    {
        "micro_batch": st.sampled_from([1, 2, 4]),
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "vp": st.sampled_from([1, 2]),
        "cp": st.sampled_from([1, 2, 4]),
        "ep": st.sampled_from([1, 2, 4]),
        "sequence_parallel": st.booleans(),
        "zero_stage": st.sampled_from([0, 1]),
        "overlap_comm": st.booleans(),
        "overlap_param_gather": st.booleans(),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["bf16", "fp16", "fp32", "fp8", "mxfp8"]),
    }
)


@given(settings=CONFIGURATIONS, job=st.sampled_from([DENSE, SPARSE]))
def test_what_is_written_is_read_back_and_legal(settings: dict, job: Workload) -> None:
    """The reader of ``pretune check`` finds the same layout, and Megatron's own rules find no fault."""
    wanted = Knobs(**settings)
    assume(not MEGATRON.problems(job, PLATFORM, wanted))
    knobs = MEGATRON.resolve(job, PLATFORM, wanted, own_script=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "megatron.args"
        path.write_text(MEGATRON.files(job, PLATFORM, knobs)["megatron.args"])
        verdict = check(path, DEVICES)
    assert verdict.problems == []
    layout = ("micro_batch", "accumulation", "dp", "tp", "pp", "vp", "cp", "ep")
    assert {name: verdict.resolved[name] for name in layout} == {
        name: getattr(knobs, name) for name in layout
    }
    assert verdict.resolved["global_batch_sequences"] == job.global_batch_sequences
    assert verdict.resolved.get("sequence_parallel", False) == knobs.sequence_parallel
    assert verdict.resolved.get("activation_checkpointing", "none") == knobs.activation_checkpointing


EVERYTHING = {
    "micro_batch": 1, "tp": 2, "pp": 4, "vp": 2, "cp": 2, "ep": 4, "expert_tp": 1, "sequence_parallel": True,
    "tp_comm_overlap": True, "overlap_p2p_comm": False, "cp_comm_type": "a2a", "zero_stage": 1,
    "overlap_comm": True, "overlap_param_gather": True, "reduce_bucket_size": 80_000_000,
    "communication_data_type": "bf16", "offload_optimizer": "cpu", "precision": "fp8",
    "activation_checkpointing": "full", "recompute_method": "block", "recompute_num_layers": 1,
    "attention": "flash", "cross_entropy_loss_fusion": True, "moe_grouped_gemm": True,
    "moe_token_dispatcher": "alltoall",
}  # fmt: skip


def written(**settings: object) -> str:
    knobs = MEGATRON.resolve(SPARSE, PLATFORM, Knobs.model_validate(settings), own_script=True)
    return MEGATRON.files(SPARSE, PLATFORM, knobs)["megatron.args"]


@pytest.mark.parametrize(("name", "settings"), [("everything", EVERYTHING), ("stock", {"micro_batch": 1})])
def test_the_argument_list_is_as_it_was(name: str, settings: dict) -> None:
    """Golden: both lists were read by Megatron-LM's own parser (core 0.16.1 and 0.20)."""
    assert written(**settings) == (GOLDEN / f"megatron_{name}.args").read_text()


def test_megatrons_own_parser_reads_it() -> None:
    arguments = pytest.importorskip("megatron.training.arguments", reason="Megatron-LM is not installed")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    read = parser.parse_args(shlex.split(written(**EVERYTHING)))
    assert (read.tensor_model_parallel_size, read.ddp_bucket_size) == (2, 80_000_000)
    assert (read.num_virtual_stages_per_pipeline_rank, read.overlap_p2p_comm) == (2, False)
    assert (read.fp8, read.recompute_method, read.cp_comm_type) == ("hybrid", "block", ["a2a"])
