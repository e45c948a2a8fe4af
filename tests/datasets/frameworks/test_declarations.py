"""What declarations say: which values a knob takes, which versions know it, and the page that lists them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pretune.datasets import Accelerator, Knobs, Platform, Workload
from pretune.datasets.frameworks import FRAMEWORKS, framework
from pretune.datasets.presets import model
from pretune.errors import InputError
from pretune.tuner.space import Space

DOCS = Path(__file__).parents[3] / "docs"
DEEPSPEED = framework("deepspeed")
JOB = Workload(model=model("gpt-tiny"), sequence_length=128, global_batch_tokens=128 * 64)
EIGHT = Platform(name="eight", accelerator=Accelerator(name="gpu"), devices_per_node=8, backend="nccl")


def test_the_page_of_knobs_is_what_the_frameworks_declare() -> None:
    spec = importlib.util.spec_from_file_location("knobs", DOCS / "knobs.py")
    knobs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(knobs)
    text = knobs.PAGE.read_text(encoding="utf-8")
    assert text == knobs.page(), "run python docs/knobs.py"
    assert all(f"| `{name}` |" in text for one in FRAMEWORKS.values() for name in one.knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"zero_stage": 3, "zero_hpz_partition_size": 3}, "do not divide the 8 devices; nearest: 2, 4"),
        ({"zero_stage": 2, "offload_param": "cpu"}, "offload_param: weights are offloaded by ZeRO-3 alone"),
        ({"offload_param": "nvme"}, "offload_param: 'nvme' is not known; nearest: none, cpu"),
        ({"partition_activations": True}, "splits over tensor-parallel ranks, but tp is 1"),
        ({"sub_group_size": 0.5}, "sub_group_size: 0.5 is not a positive whole number"),
    ],
)  # fmt: skip
def test_what_deepspeed_refuses_of_its_rarer_settings(knobs: dict, message: str) -> None:
    said = [str(each) for each in DEEPSPEED.problems(JOB, EIGHT, Knobs(**knobs))]
    assert [text for text in said if message in text], said


def test_the_trial_program_quantizes_on_accelerators_only() -> None:
    knobs = Knobs(zero_stage=3, zero_quantized_weights=True)
    assert DEEPSPEED.program_problems(JOB, EIGHT, knobs) == []
    cpus = EIGHT.model_copy(update={"backend": "gloo"})
    assert [each.field for each in DEEPSPEED.program_problems(JOB, cpus, knobs)] == ["zero_quantized_weights"]


def test_a_rare_knob_at_its_default_is_the_configuration_without_it() -> None:
    asked = {"zero_stage": 3, "zero_hpz_partition_size": 1, "offload_param": "none"}
    assert DEEPSPEED.resolve(JOB, EIGHT, Knobs(**asked)) == DEEPSPEED.resolve(JOB, EIGHT, Knobs(zero_stage=3))
    told = DEEPSPEED.resolve(JOB, EIGHT, Knobs(zero_stage=3, zero_hpz_partition_size=4))
    assert told.settings()["zero_hpz_partition_size"] == 4
    assert '"zero_hpz_partition_size": 4' in DEEPSPEED.files(JOB, EIGHT, told)["ds_config.json"]


def test_a_version_that_does_not_know_a_knob_is_named() -> None:
    knobs = Knobs(zero_hpz_partition_size=2, round_robin_gradients=True)
    (problem,) = DEEPSPEED.version_problems(knobs, "0.9.5")
    assert str(problem) == (
        "zero_hpz_partition_size: deepspeed 0.9.5 is installed, which knows it from 0.10.0"
    )
    assert DEEPSPEED.version_problems(knobs, "0.10.0") == DEEPSPEED.version_problems(knobs, "0.19.8+x") == []


def test_a_space_names_the_knob_whose_value_is_none_and_what_changes_numerics() -> None:
    with pytest.raises(InputError, match=r"space: offload_param: 'disk' is not known; nearest: none, cpu"):
        Space(knobs={"offload_param": ["none", "disk"]}).candidates(JOB, EIGHT)
    with pytest.raises(InputError, match="zero_quantized_weights changes what is computed"):
        Space(knobs={"zero_quantized_weights": [False, True]}).candidates(JOB, EIGHT)
    stock = Space(knobs={"micro_batch": [1], "zero_quantized_weights": [False]}).candidates(JOB, EIGHT)
    assert len(stock) == 1
    mixed = Space(knobs={"micro_batch": [1], "tp": [1, 2], "zero_stage": [0, 1]}, own_script=True)
    assert len(mixed.candidates(JOB, EIGHT, "megatron")) == 4
