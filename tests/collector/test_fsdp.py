"""FSDP2 in the trial program: what it learns, and what it sends, on four real gloo ranks."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, TrialSpec, Workload
from pretune.datasets.frameworks import framework

GPT = ModelSpec(name="tiny", layers=4, hidden_size=64, heads=4, vocabulary=256, max_positions=32)
LLAMA = GPT.model_copy(
    update={
        "gated_mlp": True,
        "tied_embeddings": False,
        "positions": "rotary",
        "norm": "rmsnorm",
        "kv_heads": 2,
    }
)
PLATFORM = Platform(name="here", accelerator=Accelerator(name="cpu"), devices_per_node=4, backend="gloo")


def case(name="fsdp", model=LLAMA, precision="fp32", **knobs):
    workload = Workload(model=model, sequence_length=32, global_batch_tokens=512, precision=precision)
    return TrialSpec(
        trial_id="case",
        framework=name,
        workload=workload,
        platform=PLATFORM,
        knobs=Knobs(**{"micro_batch": 4} | knobs),
    )


CASES = {
    "plain": case(),
    "accumulation": case(micro_batch=2),
    "always": case(reshard_after_forward="always"),
    "never": case(reshard_after_forward="never"),
    "bf16": case(precision="bf16"),
    "hybrid": case(dp_shard=2, dp_replicate=2),
    "tied": case(model=GPT),
    "recomputed": case(activation_checkpointing="full"),
    "kept": case(activation_checkpointing="none"),
    "foreach": case(optimizer_kernel="foreach"),
}
BESIDE = {"ddp": case("torch_ddp"), "ddp tied": case("torch_ddp", model=GPT)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the third window of each case did on rank 0."""
    folder = tmp_path_factory.mktemp("fsdp")
    cases, results = folder / "cases.json", folder / "results.json"
    every = CASES | BESIDE
    cases.write_text(json.dumps([json.loads(spec.model_dump_json()) for spec in every.values()]))
    program = Path(__file__).parent / "programs" / "knob_effects.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "4"]
    run = subprocess.run(
        [*command, str(program), str(cases), str(results)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(zip(every, json.loads(results.read_text()), strict=True))


def declared(spec):
    chosen = framework(spec.framework)
    knobs = chosen.resolve(spec.workload, spec.platform, spec.knobs)
    total = defaultdict(lambda: [0, 0])
    for each in chosen.collectives(spec.workload, spec.platform, knobs):
        total[each.op] = [total[each.op][0] + each.calls, total[each.op][1] + each.bytes]
    return dict(total)


@pytest.mark.parametrize("name", CASES)
def test_it_learns_what_replicas_learn(found, name):
    reference = found["ddp tied" if name == "tied" else "ddp"]["losses"]
    assert found[name]["losses"] == pytest.approx(reference, abs=2e-2 if name == "bf16" else 1e-4)
    assert reference[2] < reference[0]


@pytest.mark.parametrize("name", CASES)
def test_the_collectives_are_those_that_the_framework_declares(found, name):
    assert found[name]["collectives"] == declared(CASES[name])


def test_recomputation_keeps_less(found):
    saved = {name: found[name]["saved_bytes"] for name in ("recomputed", "plain", "kept")}
    assert saved["recomputed"] < saved["plain"] < saved["kept"]  # by default every second layer


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"tp": 2}, "the trial program runs dp of this framework only"),
        ({"dp_shard": 1, "dp_replicate": 4}, "only replicates, as torch_ddp does"),
        ({"selective_operations": True}, "not in the built-in trial program"),
        ({"offload_optimizer": "cpu"}, "not in the built-in trial program"),
    ],
)
def test_what_the_program_has_not_is_refused_unless_a_script_runs_it(knobs, reason):
    spec = case(**{"micro_batch": 2} | knobs)
    chosen = framework("fsdp")
    refused = chosen.refusals(spec.workload, PLATFORM, spec.knobs)
    assert any(reason in problem.reason for problem in refused)
    assert chosen.refusals(spec.workload, PLATFORM, spec.knobs, own_script=True) == []
