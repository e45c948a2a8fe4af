"""From what a log states to a trial: nothing is guessed, and what is public of names is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pretune.datasets import Accelerator, Status, Trial
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.platform import StatedPlatform

MEASURED = {"model.name": "m", "tokens_per_s_per_device": 100.0}


def completed(values: dict[str, Any], tmp_path: Path, platform: StatedPlatform | None = None) -> Any:
    return complete(Run(1, "key", MEASURED | values), tmp_path, "csv", Given(platform))


@pytest.mark.parametrize(
    ("stated", "nodes", "local"),
    [
        ({"accelerator.name": "H100-SXM", "platform.devices": 128}, 16, 8),
        ({"accelerator.name": "H100-SXM", "platform.devices": 4}, 1, 4),
        ({"accelerator.name": "H200-NVL-141GB", "platform.devices": 16}, 4, 4),
        ({"accelerator.name": "H100-SXM", "platform.devices": 128, "platform.nodes": 32}, 32, 4),
        ({"accelerator.name": "odd", "platform.nodes": 4, "platform.devices_per_node": 2}, 4, 2),
        ({"accelerator.name": "odd", "platform.devices": 64, "platform.devices_per_node": 16}, 4, 16),
        ({"accelerator.name": "odd", "platform.devices": 1}, 1, 1),
    ],
)
def test_devices_share_nodes_as_stated_or_as_the_vendor_builds_them(tmp_path, stated, nodes, local):
    found = completed(stated, tmp_path).platform
    assert (found.nodes, found.devices_per_node) == (nodes, local)


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"accelerator.name": "odd", "platform.devices": 128}, "how many of its 128 devices share a node"),
        ({"accelerator.name": "H100-SXM", "platform.devices": 12}, "12 devices are no whole nodes of 8"),
        ({"accelerator.name": "H100-SXM"}, "does not state how many devices"),
        ({"platform.devices": 8}, "states no platform"),
    ],
)
def test_a_platform_that_is_not_known_is_not_made_up(tmp_path, stated, reason):
    aside = completed(stated, tmp_path)
    assert isinstance(aside, SetAside)
    assert reason in aside.reason
    assert "--platform" in aside.reason


@pytest.mark.parametrize(
    ("accelerator", "backend"),
    [("Gaudi2", "hccl"), ("TPU-v5e", "xla"), ("MI300X", "nccl"), ("A64FX", "mpi"), ("odd", None)],
)
def test_collectives_are_the_vendors_unless_somebody_says_otherwise(tmp_path, accelerator, backend):
    stated = {"accelerator.name": accelerator, "platform.devices": 1}
    assert completed(stated, tmp_path).platform.backend == backend
    assert completed(stated | {"platform.backend": "gloo"}, tmp_path).platform.backend == "gloo"
    pod = StatedPlatform(name="pod", accelerator=Accelerator(name=accelerator), devices_per_node=1)
    assert completed({}, tmp_path, pod).platform.backend == backend


ONE = {"accelerator.name": "H100-SXM", "platform.devices": 8}


def test_what_no_log_states_stays_unknown(tmp_path):
    trial = completed(ONE | {"model.layers": 2, "model.gated_mlp": True, "model.hidden_size": 64}, tmp_path)
    assert isinstance(trial, Trial)
    known = {name: v for name, v in trial.workload.model.model_dump().items() if v is not None}
    assert known == {"name": "m", "layers": 2, "hidden_size": 64, "gated_mlp": True}  # no ffn_size of GPT
    assert trial.workload.model_dump(exclude={"model"}, exclude_none=True) == {}


def test_a_public_models_name_says_its_shape_unless_the_log_contradicts_it(tmp_path):
    named = completed(ONE | {"model.name": "Llama-2-7b", "model.layers": 32}, tmp_path)
    assert (named.workload.model.vocabulary, named.workload.model.ffn_size) == (32000, 11008)
    other = completed(ONE | {"model.name": "Llama-2-7b", "model.layers": 8}, tmp_path)
    assert (other.workload.model.layers, other.workload.model.hidden_size) == (8, None)
    longer = completed(ONE | {"model.name": "gpt2", "workload.sequence_length": 4096}, tmp_path)
    assert longer.workload.model.max_positions is None  # GPT-2 has 1024


@pytest.mark.parametrize(
    ("word", "precision"), [("bfloat16", "bf16"), ("mxfp8", "mxfp8"), ("NVFP4", "nvfp4"), ("amp", None)]
)
def test_a_precision_has_one_name_and_one_that_may_mean_several_none(tmp_path, word, precision):
    assert completed(ONE | {"workload.precision": word}, tmp_path).workload.precision == precision


def test_a_precision_that_nobody_knows_is_set_aside(tmp_path):
    assert "'int3'" in completed(ONE | {"workload.precision": "int3"}, tmp_path).reason


def test_a_throughput_without_a_batch_is_a_trial_and_a_step_time_without_one_is_none(tmp_path):
    trial = completed(ONE, tmp_path)
    assert (trial.status, trial.tokens_per_s, trial.step_time_s) == (Status.OK, 800.0, None)
    alone = {"tokens_per_s_per_device": None, "step_time_s": 2.0}
    assert "states no workload.sequence_length" in completed(ONE | alone, tmp_path).reason
