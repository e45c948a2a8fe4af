"""Each knob's effect on a real two-rank DeepSpeed job, or that it has none where its declaration says so.

One torchrun trains every case for three windows and writes down the third: the collectives that
torch.distributed was asked for, kernels, tensors held, activations saved, losses.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, TrialSpec, Workload
from pretune.datasets.frameworks import framework

# DeepSpeed is pinned: this changes only with its version, or with what is declared of it
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MODEL = ModelSpec(name="tiny", layers=2, hidden_size=64, heads=4, vocabulary=256, max_positions=32)
PLATFORM = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo")
WORKLOADS = {
    precision: Workload(model=MODEL, sequence_length=32, global_batch_tokens=256, precision=precision)
    for precision in ("fp32", "bf16")
}


def case(zero_stage=1, precision="fp32", name="deepspeed", platform=PLATFORM, **knobs):
    if name == "deepspeed":
        knobs["zero_stage"] = zero_stage
    return TrialSpec(
        trial_id="case",
        framework=name,
        workload=WORKLOADS[precision],
        platform=platform,
        knobs=Knobs(**{"micro_batch": 4} | knobs),
    )


def inert(stage):
    """The knobs that are declared inert on gloo, each at a value that is not the stage's default."""
    return {"allgather_bucket_size": 1000, "overlap_comm": stage != 3, "allgather_partitions": False}


SHARDED = {"stage3_param_persistence_threshold": 0}  # at ZeRO-3, weights this small would stay whole
LOW = {"stage3_param_persistence_threshold": 1000}  # the norms alone stay whole
CASES = {
    **{f"zero {stage}": case(stage) for stage in range(4)},
    **{f"zero {stage} bf16": case(stage, "bf16") for stage in range(4)},
    **{f"zero {stage} accumulation": case(stage, micro_batch=2) for stage in range(4)},
    "buckets": case(reduce_bucket_size=20_000),
    "buckets accumulation": case(2, reduce_bucket_size=20_000, micro_batch=2),
    "reduce": case(use_multi_rank_bucket_allreduce=False),
    "reduce zero 2": case(2, use_multi_rank_bucket_allreduce=False),
    "reduce zero 2 accumulation": case(2, use_multi_rank_bucket_allreduce=False, micro_batch=2),
    "reduce buckets": case(use_multi_rank_bucket_allreduce=False, reduce_bucket_size=20_000),
    "buckets zero 2": case(2, reduce_bucket_size=20_000),
    "all-reduce buckets": case(reduce_bucket_size=20_000, reduce_scatter=False),
    "all-reduce buckets zero 3": case(3, reduce_bucket_size=20_000, reduce_scatter=False),
    "send bf16": case(communication_data_type="bf16"),
    "send fp16": case(communication_data_type="fp16"),
    "send fp16 zero 2": case(2, communication_data_type="fp16"),
    "send fp32 zero 0 bf16": case(0, "bf16", communication_data_type="fp32"),
    "send bf16 zero 3": case(3, communication_data_type="bf16"),
    "all-reduce zero 3": case(3, reduce_scatter=False),
    "scatter zero 3": case(3, reduce_scatter=False, contiguous_gradients=False),
    "sharded": case(3, **SHARDED),
    "sharded prefetch": case(3, stage3_prefetch_bucket_size=10_000, **SHARDED),
    "sharded max live": case(3, stage3_max_live_parameters=1000, **SHARDED),
    "low accumulation": case(3, micro_batch=2, **LOW),
    "low prefetch 1": case(3, stage3_prefetch_bucket_size=1, **LOW),
    "low prefetch": case(3, stage3_prefetch_bucket_size=20_000, **LOW),
    "low prefetch max live": case(
        3, stage3_prefetch_bucket_size=20_000, stage3_max_live_parameters=100_000, **LOW
    ),
    "low max live": case(3, stage3_max_live_parameters=50_000, **LOW),
    "offload": case(offload_optimizer="cpu"),
    "offload zero 2": case(2, offload_optimizer="cpu"),
    "offload zero 3": case(3, offload_optimizer="cpu"),
    "round robin zero 2": case(2, round_robin_gradients=True),
    "offload weights": case(3, offload_param="cpu"),
    "eager": case(attention="eager"),
    "eager selective": case(attention="eager", activation_checkpointing="selective"),
    "eager full": case(attention="eager", activation_checkpointing="full"),
    "full zero 3": case(3, activation_checkpointing="full"),
    "threads": case(threads_per_rank=2),
    "ddp": case(name="torch_ddp"),
    "ddp accumulation": case(name="torch_ddp", micro_batch=2),
    "ddp buckets": case(name="torch_ddp", ddp_bucket_mb=0.1),
    **{
        f"{name} zero {stage}": case(stage, **{name: value})
        for stage in (1, 2, 3)
        for name, value in inert(stage).items()
    },
    # the last: DeepSpeed makes its groups once in a process
    "second partition": case(3, zero_hpz_partition_size=2, **SHARDED),
}


FOUR = PLATFORM.model_copy(update={"devices_per_node": 4})
# in this order: DeepSpeed's groups for tp outlive an engine, those of a pipeline replace them
SPLIT = {
    **{f"tp zero {stage}": case(stage, platform=FOUR, tp=2, micro_batch=2) for stage in range(3)},
    **{f"tp zero {stage} bf16": case(stage, "bf16", platform=FOUR, tp=2) for stage in range(3)},
    "tp full": case(platform=FOUR, tp=2, activation_checkpointing="full"),
    **{f"pp zero {stage}": case(stage, platform=FOUR, pp=2, micro_batch=2) for stage in range(2)},
    **{f"pp zero {stage} bf16": case(stage, "bf16", platform=FOUR, pp=2) for stage in range(2)},
    "tp pp": case(platform=FOUR, tp=2, pp=2, micro_batch=2),
    "tp pp bf16": case(0, "bf16", platform=FOUR, tp=2, pp=2, micro_batch=2),
    "tp pp full": case(platform=FOUR, tp=2, pp=2, activation_checkpointing="full"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return effects(tmp_path_factory.mktemp("effects"), CASES)


@pytest.fixture(scope="module")
def found_split(tmp_path_factory):
    return effects(tmp_path_factory.mktemp("split"), SPLIT, ranks=4)


def effects(folder, tried, ranks=2):
    """What each case that is ``tried`` did on rank 0."""
    pytest.importorskip("deepspeed")
    cases, results = folder / "cases.json", folder / "results.json"
    cases.write_text(json.dumps([json.loads(spec.model_dump_json()) for spec in tried.values()]))
    program = Path(__file__).parent / "programs" / "knob_effects.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    run = subprocess.run(
        [*command, str(program), str(cases), str(results)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(zip(tried, json.loads(results.read_text()), strict=True))


def declared(spec):
    chosen = framework(spec.framework)
    knobs = chosen.resolve(spec.workload, spec.platform, spec.knobs)
    issued = chosen.collectives(spec.workload, spec.platform, knobs)
    total = defaultdict(lambda: [0, 0])
    for each in issued:
        total[each.op] = [total[each.op][0] + each.calls, total[each.op][1] + each.bytes]
    return dict(total)


# the declaration is exact but for a scalar's width here, and for the order in which few weights are fetched
ROUGH = ["offload zero 3", "sharded max live"]
EXACT = [n for n, spec in CASES.items() if spec.framework == "deepspeed" and n not in ROUGH]


@pytest.mark.parametrize("name", EXACT)
def test_the_collectives_are_those_that_the_framework_declares(found, name):
    assert found[name]["collectives"] == declared(CASES[name])


@pytest.mark.parametrize("name", SPLIT)
def test_the_collectives_of_tp_and_pp_are_those_that_the_framework_declares(found_split, name):
    assert found_split[name]["collectives"] == declared(SPLIT[name])


@pytest.mark.parametrize("name", ROUGH)
def test_the_collectives_are_nearly_those_that_the_framework_declares(found, name):
    issued, expected = found[name]["collectives"], declared(CASES[name])
    assert issued.keys() == expected.keys()
    for op, (calls, size) in expected.items():
        assert issued[op] == [pytest.approx(calls, rel=0.3), pytest.approx(size, abs=8)]


@pytest.mark.parametrize("stage", range(4))
def test_bf16_halves_the_bytes(found, stage):
    for op, (_, size) in found[f"zero {stage}"]["collectives"].items():
        if size > 100:
            assert found[f"zero {stage} bf16"]["collectives"][op][1] == pytest.approx(size / 2, rel=1e-3)
    assert found[f"zero {stage} bf16"]["saved_bytes"] < 0.7 * found[f"zero {stage}"]["saved_bytes"]


@pytest.mark.parametrize(
    "name", [n for n, s in CASES.items() if s.knobs.settings().get("zero_stage", 0) in (1, 2, 3)]
)
def test_no_knob_changes_what_is_learnt(found, name):
    """Losses averaged over the ranks agree with plain ZeRO-0, whatever the layout and the kernels."""
    rough = "bf16" in name or "fp16" in name
    assert found[name]["losses"] == pytest.approx(found["zero 0"]["losses"], abs=2e-2 if rough else 1e-4)


def test_ddp_learns_what_deepspeed_learns(found):
    for name in ("ddp", "ddp accumulation", "ddp buckets"):
        assert found[name]["losses"] == pytest.approx(found["zero 0"]["losses"], abs=1e-4)
    assert found["zero 0"]["losses"][2] < found["zero 0"]["losses"][0]


def test_ddp_exchanges_once_a_window_in_buckets(found):
    calls = {
        name: found[name]["kernels"]["gloo:all_reduce"] for name in ("ddp", "ddp accumulation", "ddp buckets")
    }
    assert calls["ddp"] == calls["ddp accumulation"] == declared(CASES["ddp"])["all_reduce"][0] == 1
    assert calls["ddp buckets"] == pytest.approx(declared(CASES["ddp buckets"])["all_reduce"][0], abs=1)


def test_accumulation_doubles_the_reductions_of_zero_2_only(found):
    def sent(name):
        return found[name]["collectives"]["all_reduce"][1]

    assert sent("zero 2 accumulation") == pytest.approx(2 * sent("zero 2"), rel=1e-4)
    assert sent("zero 1 accumulation") == sent("zero 1")


def test_small_buckets_mean_more_calls_and_reduce_replaces_all_reduce(found):
    assert (
        found["buckets"]["collectives"]["all_reduce"][0] > 3 * found["zero 1"]["collectives"]["all_reduce"][0]
    )
    assert "reduce" not in found["zero 1"]["collectives"]
    assert found["reduce"]["collectives"]["reduce"][0] == 2
    assert "reduce_scatter" not in found["all-reduce zero 3"]["collectives"]
    assert "reduce_scatter" in found["scatter zero 3"]["collectives"]


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_gradients_are_sent_in_the_type_asked_for(found, kind):
    half = found[f"send {kind}"]["collectives"]["all_reduce"][1]
    assert half == pytest.approx(found["zero 1"]["collectives"]["all_reduce"][1] / 2, rel=1e-4)


def test_zero_3_gathers_as_it_is_told_once_its_weights_are_sharded(found):
    calls = {
        name: found[name]["collectives"]["all_gather"][0] for name in CASES if name.startswith("sharded")
    }
    assert calls["sharded"] == 1 < calls["sharded prefetch"] < calls["sharded max live"]


def test_sharding_holds_less_and_offload_moves_the_optimizer(found):
    states = 2 * 4 * MODEL.parameters  # Adam's two moments
    assert found["zero 0"]["held_bytes"] - found["zero 1"]["held_bytes"] == pytest.approx(states / 4, rel=0.2)
    for plain, offloaded in (
        ("zero 1", "offload"),
        ("zero 2", "offload zero 2"),
        ("zero 3", "offload zero 3"),
    ):
        assert not found[plain]["offloaded"]
        assert found[offloaded]["offloaded"]
        # on a CPU the states move within the same memory, and gradients get a copy on the optimizer's side
        assert found[offloaded]["held_bytes"] > found[plain]["held_bytes"]


def test_checkpointing_keeps_fewer_activations_and_computes_them_again(found):
    saved = {name: found[name]["saved_bytes"] for name in ("eager", "eager selective", "eager full")}
    assert saved["eager full"] < 0.4 * saved["eager"]
    assert saved["eager full"] < saved["eager selective"] < saved["eager"]
    assert found["full zero 3"]["saved_bytes"] < 0.4 * found["zero 3"]["saved_bytes"]
    assert found["eager"]["kernels"]["aten::_softmax"] == MODEL.layers
    assert found["eager full"]["kernels"]["aten::_softmax"] == 2 * MODEL.layers
    assert found["eager selective"]["kernels"]["aten::_softmax"] == 2 * MODEL.layers


def test_attention_runs_the_kernel_that_was_asked_for(found):
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert found["zero 1"]["kernels"][fused] == MODEL.layers
    assert fused not in found["eager"]["kernels"]
    assert "aten::_softmax" not in found["zero 1"]["kernels"]


def test_threads_take_effect(found):
    assert found["threads"]["threads"] == 2
    assert found["zero 1"]["threads"] == 1


def test_compilation_takes_effect(tmp_path):
    found = effects(tmp_path, {"plain": case(), "compiled": case(compile=True)})
    assert found["compiled"]["compiled_frames"] > 0
    assert found["plain"]["compiled_frames"] == 0
    assert "aten::gelu" in found["plain"]["kernels"]
    assert "aten::gelu" not in found["compiled"]["kernels"]  # fused into generated code


def test_what_is_declared_inert_on_gloo_is_what_is_tried():
    declared_inert = {name for name, each in framework("deepspeed").knobs.items() if "gloo" in each.inert}
    assert declared_inert == inert(1).keys()


@pytest.mark.parametrize("knob", inert(1))
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_knob_declared_inert_changes_nothing_that_is_issued(found, knob, stage):
    for seen in ("collectives", "saved_bytes", "threads"):
        assert found[f"{knob} zero {stage}"][seen] == found[f"zero {stage}"][seen]
