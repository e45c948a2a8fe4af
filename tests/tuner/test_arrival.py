"""Whether what the tuner decides arrives at a job's script."""

import pytest

from pretune.errors import InputError
from pretune.tuner.job import JobSpec

DEEPSPEED = "torchrun --nproc_per_node {devices_per_node} train.py --deepspeed {ds_config}"
PLAIN = "python train.py --batch {micro_batch} --accumulate {accumulation}"


def candidates(write_job, target, command, **changes):
    return JobSpec.from_yaml(write_job(command=command, **changes)).candidates(target)


def test_a_file_carries_knobs_that_the_command_does_not_name(write_job, target):
    space = {"micro_batch": [1, 2, 4], "zero_stage": [0, 1, 2, 3], "reduce_bucket_size": [500000, 5000000]}
    assert len(candidates(write_job, target, DEEPSPEED, space=space)) == 3 * 7


def test_what_a_script_can_run_is_no_matter_of_pretune_s_own_program(write_job, target):
    space = {"micro_batch": [1, 2], "pp": [1, 2]}
    found = candidates(write_job, target, f"{DEEPSPEED} --stages {{pp}}", space=space)
    assert {knobs.pp for knobs in found.knobs} == {1, 2}


def test_a_knob_of_the_user_s_own_needs_no_framework(write_job, target):
    space = {"micro_batch": [1], "prefetch": [0, 2, 8]}
    found = candidates(
        write_job, target, f"{DEEPSPEED} --workers {{prefetch}}", space=space, default={"prefetch": 0}
    )
    assert [knobs.settings()["prefetch"] for knobs in found.knobs] == [0, 2, 8]


REFUSED = {
    "bad placeholder": (
        PLAIN + " {micro_bach}",
        {},
        r"command: \{micro_bach\} stands for nothing; known: .*",
    ),
    "knob that no road leads to": (
        DEEPSPEED,
        {"space": {"micro_batch": [1], "activation_checkpointing": ["none", "full"]}},
        r"activation_checkpointing differs .* put \{activation_checkpointing\} into command \(or \{ds_config",
    ),
    "misspelt knob": (DEEPSPEED, {"space": {"micro_bath": [1, 2]}}, "micro_bath differs between trials"),
    "file that is not handed on": (
        PLAIN,
        {"space": {"micro_batch": [1, 2], "zero_stage": [0, 1]}},
        "zero_stage differs between trials, and the script is not told",
    ),
    "one value, another than the default's": (
        PLAIN,
        {"space": {"micro_batch": [1, 2], "zero_stage": 3}},
        "zero_stage differs between trials",
    ),
    "accumulation that would change the batch": (
        "python train.py --batch {micro_batch}",
        {"space": {"micro_batch": [1, 2, 4]}},
        r"accumulation differs between trials, .*put \{accumulation\} into command",
    ),
    "knob that the default has not": (
        DEEPSPEED + " --workers {prefetch}",
        {"space": {"micro_batch": [1], "prefetch": [1, 2]}},
        "prefetch: command asks for it; give it a value in space and in default",
    ),
    "knob that is nowhere set": (
        DEEPSPEED + " {communication_data_type}",
        {"space": {"micro_batch": [1, 2]}},
        "communication_data_type: command asks for it",
    ),
    "product of words": (
        DEEPSPEED + " {attention*activation_checkpointing}",
        {"space": {"micro_batch": [1, 2]}},
        "command: a product is of numbers, not of words",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_arrive_is_refused_by_name(write_job, target, name):
    command, changes, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as caught:
        candidates(write_job, target, command, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("told", ["{global_batch_sequences}", "{global_batch_tokens}", "{accumulation}"])
def test_the_global_batch_tells_the_accumulation(write_job, target, told):
    command = f"python train.py --micro-batch {{micro_batch}} --rest {told}"
    assert len(candidates(write_job, target, command, space={"micro_batch": [1, 2, 4]})) == 3


def test_the_script_s_folder_is_that_of_the_job(write_job, tmp_path):
    assert JobSpec.from_yaml(write_job(command=DEEPSPEED)).command.folder == str(tmp_path)
    inside = {"run": DEEPSPEED, "folder": "code"}
    assert JobSpec.from_yaml(write_job(command=inside)).command.folder == str(tmp_path / "code")


@pytest.mark.parametrize(
    ("framework", "command"),
    [("megatron", "sh -c 'python train.py $(cat {megatron})'"), ("fsdp", "torchrun train.py {train}")],
)
def test_a_file_that_has_the_global_batch_tells_the_accumulation(write_job, target, framework, command):
    found = candidates(write_job, target, command, framework=framework, space={"micro_batch": [1, 2]})
    assert [knobs.micro_batch for knobs in found.knobs] == [1, 2]
