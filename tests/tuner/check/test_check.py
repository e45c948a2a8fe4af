"""pretune's word on a configuration against DeepSpeed's own, and the arithmetic of Megatron's arguments."""

import json
import os
import subprocess
import sys
from itertools import product

import pytest

from pretune.errors import InputError
from pretune.tuner.check import Devices, check
from pretune.tuner.check.deepspeed_keys import DEPRECATED, REMOVED, SIZES, SWITCHES, TOP_LEVEL, ZERO

TRIO = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

# what DeepSpeed itself says of configurations on so many data-parallel ranks, and the names that it knows
_ASKED = """
import json, sys
from types import SimpleNamespace
import deepspeed.runtime.config as c, deepspeed.runtime.constants as names
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig as Zero

def takes(config, dp):
    try:
        c.DeepSpeedConfig(config, mpu=SimpleNamespace(get_data_parallel_world_size=lambda: dp))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None

c.dist = SimpleNamespace(get_rank=lambda: 0)
fields = {f.alias or n: f for n, f in Zero.model_fields.items()}
print("ANSWER" + json.dumps({
    "taken": [takes(config, dp) for config, dp in json.load(sys.stdin)],
    "sizes": [n for n, f in fields.items() if f.annotation is int],
    "switches": [n for n, f in fields.items() if "bool" in str(f.annotation)],
    "fields": list(fields),
    "short": list(Zero.model_fields),
    "deprecated": [n for n, f in fields.items() if (f.json_schema_extra or {}).get("deprecated")],
    "removed": [*c._REMOVED_TOP_LEVEL_CONFIG_KEYS, *c._REMOVED_ZERO_CONFIG_KEYS],
}))
"""


def ask_deepspeed(configs):
    environment = os.environ | {"DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", _ASKED]
    done = subprocess.run(
        command, input=json.dumps(configs), env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.rpartition("ANSWER")[2].splitlines()[0])


def judged(tmp_path, config, devices=8, model=None):
    (tmp_path / "ds.json").write_text(json.dumps(config))
    return check(tmp_path / "ds.json", Devices.read(str(devices)), model)


@pytest.mark.slow  # imports DeepSpeed
def test_legal_is_what_deepspeed_takes_and_the_resolved_file_too(tmp_path):
    trios = [
        {name: size for name, size in zip(TRIO, sizes, strict=True) if size}
        for sizes in product((None, 12, 24, 100), (None, 1, 3, 4), (None, 1, 2, 5))
    ]
    extras = (
        {},
        {"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}},
        {"zero_optimization": {"stage": 3, "reduce_bucket_size": 5.5}},
        {"zero_optimization": {"stage": 1, "reduce_buckt_size": 5}},
        {"zero_optimization": {"stage": 1, "mics_shard_size": 4}},
        {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
        {"zero_optimization": {"stage": 1, "cpu_offload": True}},
        {"amp": {"enabled": True}},
        {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 5e7, "max_live_parameters": 10}},
        {"memory_break_down": True},
        *({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": stage}} for stage in (0, 2, 3)),
        {"gradient_allreduce_op": "Sum", "zero_optimization": {"stage": 2, "zenflow": {}}},
        {"gradient_allreduce_op": "sum", "compile": {"deepcompile": True}},
        {"gradient_allreduce_op": "max"},
        *({"communication_data_type": kind} for kind in ("BF16", "bfp16")),
        *({"zero_optimization": {"stage": 2, "offload_param": {"device": to}}} for to in ("cpu", "disk")),
        *(
            {kind: {f"{kind}_master_weights_and_grads": True}, "zero_optimization": {"stage": stage}}
            for kind in ("bf16", "fp16")
            for stage in (0, 1)
        ),
        {"bfloat16": {"enabled": True, "bf16_optimizer_states": True}, "zero_optimization": {"stage": 1}},
    )
    asked = [(trio, dp) for trio in trios for dp in (1, 3, 4)]
    asked += [({"train_batch_size": 8} | extra, 4) for extra in extras]
    verdicts = [judged(tmp_path, config, dp) for config, dp in asked]
    resolved = [(v.resolved["config"], dp) for v, (_, dp) in zip(verdicts, asked, strict=True) if v.legal]
    answer = ask_deepspeed(asked + resolved)
    for verdict, (config, dp), refusal in zip(verdicts, asked, answer["taken"], strict=False):
        assert verdict.legal == (refusal is None), (config, dp, verdict.problems, refusal)
    assert not any(answer["taken"][len(asked) :])
    assert sum(v.legal for v in verdicts) > 40

    assert set(answer["sizes"]) == set(SIZES)
    assert set(answer["deprecated"]) == set(DEPRECATED)
    assert set(answer["switches"]) == set(SWITCHES) | set(DEPRECATED)
    both = {*answer["fields"], *answer["short"]}
    assert both - set(DEPRECATED) == set(ZERO) | {"gather_fp16_weights_on_model_save"} & both
    assert set(answer["removed"]) == {name.removeprefix("zero_optimization.") for name in REMOVED}
    assert not set(TOP_LEVEL) & set(answer["removed"])


def test_a_batch_that_nothing_reaches_names_the_nearest_that_are_legal(tmp_path):
    wanted = {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 5}
    (problem,) = judged(tmp_path, wanted, 8).problems
    assert problem.field == "train_batch_size"
    assert problem.nearest == (80, 120)
    assert problem.devices == (5, 10)
    for batch in problem.nearest:
        assert judged(tmp_path, wanted | {"train_batch_size": batch}, 8).legal
    for devices in problem.devices:
        assert judged(tmp_path, wanted, devices).legal


def test_lists_and_auto_become_every_configuration_that_they_mean(tmp_path):
    template = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": [1, 2, 3],
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {
            "stage": [0, 2],
            "reduce_bucket_size": "auto",
            "allgather_bucket_size": 5e8,
            "offload_optimizer": {"device": ["none", "cpu"]},
        },
    }
    verdict = judged(tmp_path, template, 4)
    assert verdict.combinations == 12
    assert verdict.legal_combinations == 6  # micro batch 3 never; offload not at ZeRO-0
    text = json.dumps(verdict.resolved["config"])
    assert all(open_ not in text for open_ in ("auto", "[", "500000000.0"))
    assert verdict.resolved["accumulation"] == 8
    assert {problem.field for problem in verdict.problems} == {
        "train_batch_size",
        "zero_optimization.offload_optimizer.device",
    }


def test_a_key_that_deepspeed_ignores_is_a_warning_with_what_was_meant(tmp_path):
    batch = {"train_batch_size": 8}
    near = judged(tmp_path, batch | {"gradient_acumulation_steps": 2})
    assert near.legal
    assert near.warnings[0].nearest == ("gradient_accumulation_steps",)
    own = judged(tmp_path, batch | {"my_experiment": "a"})
    assert own.legal
    assert own.warnings[0].field == "my_experiment"


def test_weights_are_offloaded_at_stage_3_alone_and_a_setting_that_does_nothing_is_a_warning(tmp_path):
    zero = {"stage": [2, 3], "offload_param": {"device": "cpu"}}
    verdict = judged(tmp_path, {"train_batch_size": 8, "zero_optimization": zero})
    assert verdict.legal_combinations == 2
    (warning,) = verdict.warnings
    assert warning.field == "zero_optimization.offload_param.device"
    assert "the stage is 2" in warning.reason


def test_a_batch_that_a_trainer_is_to_fill_in_is_named_as_a_remedy(tmp_path):
    (problem,) = judged(tmp_path, {"bf16": {"enabled": True}}).problems
    assert '"auto"' in problem.reason


def test_a_template_of_hugging_face_is_legal_and_says_what_was_taken(tmp_path):
    auto = dict.fromkeys(TRIO, "auto") | {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
    verdict = judged(tmp_path, auto)
    assert verdict.legal
    assert verdict.warnings[0].field == TRIO[1]
    assert verdict.resolved["config"]["train_batch_size"] == 8


def test_megatron_deepspeed_keeps_an_argument_that_megatron_refuses(tmp_path):
    for extra, legal in (("", False), (" --deepspeed", True)):
        (tmp_path / "run.sh").write_text(f"{ARGUMENTS} --checkpoint-activations{extra}\n")
        assert check(tmp_path / "run.sh", Devices.read("16")).legal is legal


ARGUMENTS = """
TP=4
MODEL="--num-layers 24 --hidden-size 2048 --num-attention-heads 16"
ARGS=(
  --tensor-model-parallel-size $TP
  --pipeline-model-parallel-size 2  # stages
  --micro-batch-size 2
  --global-batch-size 64
  --seq-length 2048 --bf16
)
torchrun pretrain_gpt.py ${ARGS[@]} $MODEL
"""


@pytest.mark.parametrize(
    ("changed", "devices", "field"),
    [
        ("", "16", None),
        ("", "2x8", None),
        ("", "12", "--tensor-model-parallel-size"),
        ("--pipeline-model-parallel-size 5", "20", "--pipeline-model-parallel-size"),
        ("--pipeline-model-parallel-size 5 --pp-partition-method x", "40", None),
        ("--global-batch-size 63", "16", "--global-batch-size"),
        ("--tensor-model-parallel-size 8", "8", "--tensor-model-parallel-size"),
        ("--num-virtual-stages-per-pipeline-rank 5", "16", "--num-virtual-stages-per-pipeline-rank"),
        ("--num-layers-per-virtual-pipeline-stage 5", "16", "--num-layers-per-virtual-pipeline-stage"),
        ("--num-layers-per-virtual-pipeline-stage 3 --global-batch-size 12", "16", "--global-batch-size"),
        ("--context-parallel-size 2 --seq-length 2050", "16", "--context-parallel-size"),
        ("--expert-model-parallel-size 2", "16", "--expert-model-parallel-size"),
        ("--overlap-param-gather", "16", "--overlap-param-gather"),
        ("--batch-size 4", "16", "--batch-size"),
        ("", "4+12", None),
        ("", "6+10", "--tensor-model-parallel-size"),
    ],
)
def test_megatrons_arguments_are_judged_by_what_megatron_refuses(tmp_path, changed, devices, field):
    (tmp_path / "run.sh").write_text(f"{ARGUMENTS} {changed}\n")
    verdict = check(tmp_path / "run.sh", Devices.read(devices))
    assert [problem.field for problem in verdict.problems][:1] == ([field] if field else [])
    assert verdict.legal == (field is None)
    if field is None:
        assert verdict.resolved["dp"] == 2
        assert verdict.resolved["accumulation"] == 16


@pytest.mark.parametrize(
    ("own", "field"),
    [("", "--expert-model-parallel-size"), ("1", None), ("8", "--expert-model-parallel-size")],
)
def test_experts_are_split_over_the_ranks_that_their_own_tensor_parallelism_leaves(tmp_path, own, field):
    told = "--num-experts 4 --expert-model-parallel-size 4 --sequence-parallel"
    told += f" --expert-tensor-parallel-size {own}" if own else ""
    (tmp_path / "run.sh").write_text(f"{ARGUMENTS} {told}\n")
    problems = check(tmp_path / "run.sh", Devices.read("16")).problems
    assert [problem.field for problem in problems] == ([field] if field else [])


@pytest.mark.parametrize(
    "told", ["--global-batch-size 8", "--micro-batch-size 1 --expert-model-parallel-size 4"]
)
def test_what_a_part_leaves_out_is_a_warning_and_of_a_whole_a_problem(tmp_path, told):
    (tmp_path / "part.sh").write_text(told)
    part = check(tmp_path / "part.sh", Devices.read("8"))
    assert part.legal
    model = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64"
    (tmp_path / "whole.sh").write_text(f"{told} {model}")
    assert part.warnings == check(tmp_path / "whole.sh", Devices.read("8")).problems != []


def test_a_job_on_uneven_nodes_names_the_most_devices_that_are_even(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model: gpt-tiny\nsequence_length: 128\nglobal_batch_tokens: 18432\nspace: {micro_batch: [1, 2]}\n"
        "launcher: {local: {ranks: 2}}\n"
    )
    for devices, nearest in (("4+2", "1x4"), ("8+8+2", "2x8"), ("4+3+3", "3x3")):
        (problem,) = check(tmp_path / "job.yaml", Devices.read(devices)).problems
        assert problem.nearest == (nearest,)
        assert check(tmp_path / "job.yaml", Devices.read(nearest)).legal


def test_the_nearest_degree_fits_the_model_too(tmp_path):
    (tmp_path / "run.sh").write_text(ARGUMENTS)
    (problem,) = check(tmp_path / "run.sh", Devices.read("12")).problems
    assert problem.nearest == ()  # 3 and 6 do not divide 16 heads
    assert problem.devices == (8, 16)


@pytest.mark.parametrize("text", ["", "0", "4x", "4+", "many", "-3", "4+0"])
def test_devices_that_are_none_are_refused(text):
    with pytest.raises(InputError, match="--devices"):
        Devices.read(text)


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("ds.json", "{", "is not valid JSON"),
        ("ds.json", '{"a": 1, "a": 2}', "a stands there twice"),
        ("ds.json", "[]", "holds no object"),
        ("run.sh", "echo hello", "has no Megatron argument"),
        ("run.sh", "--micro-batch-size 'x", "mend the quotes"),
        ("run.sh", "--micro-batch-size $((A * 2))", "--micro-batch-size: what the script computes"),
        ("job.yaml", "model: 3", "job.yaml"),
    ],
)
def test_what_is_no_configuration_is_one_line(tmp_path, name, text, remedy):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=remedy):
        check(tmp_path / name, Devices.read("8"))
