"""DeepSpeed 0.19.8: ZeRO stages 0 to 3 with their communication settings."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pretune.datasets.frameworks import replica, zero
from pretune.datasets.frameworks.base import Collective, Framework, Problem
from pretune.datasets.frameworks.common import LAYOUT, PROGRAM, merged
from pretune.datasets.frameworks.deepspeed_knobs import RARE, ZERO
from pretune.datasets.frameworks.legality import filled_layout, layout_problems, one_of, refuse_parallelism
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.stated import nearest_divisors
from pretune.datasets.workload import Workload

_OUTSIDE_ZERO_SECTION = {
    *("zero_stage", "communication_data_type", "offload_optimizer", "torch_adam"),
    *("offload_param", "partition_activations"),
}


class DeepSpeed(Framework):
    """``deepspeed.initialize``: ZeRO over dp, AutoTP over tp, and a ``PipelineModule`` where pp is over 1."""

    name = "deepspeed"
    distribution = "deepspeed"
    knobs: ClassVar = merged(LAYOUT, ZERO, RARE, PROGRAM)
    script = "train.py --deepspeed_config ds_config.json (Hugging Face Trainer: --deepspeed ds_config.json)"

    def problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        if wrong := self.wrong_values(knobs):
            return wrong
        problems = layout_problems(workload, platform, knobs)
        asked = knobs.model_copy(update={"precision": knobs.precision or workload.precision})
        problems += one_of(asked, "precision", ("fp32", "bf16", "fp16"), "is not built in")
        if knobs.offload_optimizer == "cpu" and not knobs.zero_stage:
            reason = f"cpu needs ZeRO, but zero_stage is {knobs.zero_stage or 0}; set zero_stage to 1, 2 or 3"
            problems.append(Problem("offload_optimizer", reason, ("none",)))
        if (knobs.pp or 1) > 1 and (knobs.zero_stage or 0) > 1:
            reason = (
                f"{knobs.zero_stage} shards gradients, which DeepSpeed refuses in a pipeline (pp {knobs.pp})"
            )
            problems.append(Problem("zero_stage", reason, (1, 0)))
        threshold = knobs.stage3_param_persistence_threshold
        if threshold is not None and threshold < 0:
            problems.append(Problem("stage3_param_persistence_threshold", f"{threshold} is negative", (0,)))
        return problems + _rare_problems(platform.devices, knobs)

    def program_problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        problems = refuse_parallelism(filled_layout(workload, platform, knobs), knobs, runs=("tp", "pp"))
        if knobs.compile and (knobs.tp or 1) > 1:  # on two busy cores 4 minutes were not enough for a toy
            reason = f"torch.compile breaks at every collective of AutoTP (tp {knobs.tp}), and takes minutes"
            problems.append(Problem("compile", reason, (False,)))
        return problems + _unbuilt(platform, knobs)

    def filled(self, workload: Workload, platform: Platform, knobs: Knobs) -> Knobs:
        derived = filled_layout(workload, platform, knobs)
        derived["precision"] = knobs.precision or workload.precision
        derived["overlap_comm"] = knobs.zero_stage == 3  # DeepSpeedZeroConfig.overlap_comm_valid
        derived["torch_adam"] = platform.backend == "gloo"
        return self.with_defaults(knobs, derived)

    def files(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """``ds_config.json``, as ``deepspeed.initialize(config=...)`` takes it."""
        of_the_trial = {
            "steps_per_print": 1_000_000_000,  # never: printing synchronises
            "optimizer": _optimizer(workload, knobs),
        }
        config = self.config(workload, knobs) | of_the_trial
        if "tensor_parallel" in config:
            config["tensor_parallel"] |= {"partition_config": _partition(workload)}
        return _file(config)

    def files_to_use(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """Without an optimizer: DeepSpeed would train with its learning rate, silently."""
        return _file(self.config(workload, knobs))

    def files_to_follow(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """With a line of the throughput timer at every step: DeepSpeed 0.19 is silent unless told."""
        return _file(self.config(workload, knobs) | {"steps_per_print": 1, "log_level": "info"})

    def told(self, workload: Workload, knobs: Knobs) -> dict[str, KnobValue]:
        optimizer = {"optimizer": _optimizer_class(workload, knobs)}
        # DeepSpeed's configuration can say how many stages there are, but only the script can make them
        degrees = {name: getattr(knobs, name) or 1 for name in ("tp", "pp")} if (knobs.pp or 1) > 1 else {}
        return {**optimizer, **degrees, **super().told(workload, knobs)}

    def config(self, workload: Workload, knobs: Knobs) -> dict[str, Any]:
        """What resolved knobs decide of DeepSpeed's configuration."""
        config: dict[str, Any] = {
            "train_batch_size": workload.global_batch_sequences,
            "train_micro_batch_size_per_gpu": knobs.micro_batch,
            "gradient_accumulation_steps": knobs.accumulation,
            "zero_optimization": _zero_optimization(knobs),
        }
        if (knobs.tp or 1) > 1 and knobs.pp in (None, 1):
            config["tensor_parallel"] = {"autotp_size": knobs.tp}
            del config["train_batch_size"]  # which DeepSpeed would check against dp x tp replicas
        if knobs.precision in ("bf16", "fp16"):
            config[knobs.precision] = {"enabled": True}
        if knobs.communication_data_type is not None:
            config["communication_data_type"] = knobs.communication_data_type
        if knobs.settings().get("partition_activations"):
            config["activation_checkpointing"] = {"partition_activations": True}
        if workload.optimizer == "sgd":  # not on DeepSpeed's list of optimizers tested under ZeRO
            config["zero_allow_untested_optimizer"] = True
        if knobs.offload_optimizer == "cpu" and _optimizer_class(workload, knobs).startswith("torch."):
            config["zero_force_ds_cpu_optimizer"] = False  # else a script's own torch optimizer is refused
        return config

    def collectives(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Collective]:
        """What one optimizer step issues; see the modules ``zero`` and ``replica`` beside this one.

        Activations pass between the stages of a pipeline point to point, which is no collective.
        """
        return zero.collectives(workload, knobs) + replica.collectives(workload, knobs)


def _file(config: dict[str, Any]) -> dict[str, str]:
    return {"ds_config.json": json.dumps(config, indent=2) + "\n"}


def _optimizer_class(workload: Workload, knobs: Knobs) -> str:
    """What steps in a trial."""
    if workload.optimizer == "sgd":
        return "torch.optim.SGD"
    if knobs.settings()["torch_adam"]:
        return "torch.optim.AdamW"
    return "deepspeed.ops.adam." + ("DeepSpeedCPUAdam" if knobs.offload_optimizer == "cpu" else "FusedAdam")


def _optimizer(workload: Workload, knobs: Knobs) -> dict[str, Any]:
    if workload.optimizer == "sgd":
        return {"type": "SGD", "params": {"lr": 1e-3}}
    adam = {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    return {"type": "AdamW", "params": adam | {"torch_adam": knobs.settings()["torch_adam"]}}


def _partition(workload: Workload) -> dict[str, Any]:
    """How AutoTP splits the trial program's transformer, whose names no preset knows."""
    columns = [r".*\.(qkv|up|gate)\.weight$"]
    split: list[dict[str, Any]] = [
        {"patterns": columns, "partition_type": "column"},
        {"patterns": [r".*\.(out|down)\.weight$"], "partition_type": "row"},
    ]
    if not workload.model.tied_embeddings:  # a tied head stays whole, with the embedding
        split.append({"patterns": [r"head\.weight$"], "partition_type": "column", "gather_output": True})
    return {"use_default_specs": False, "layer_specs": split}


def _unbuilt(platform: Platform, knobs: Knobs) -> list[Problem]:
    """What the trial program has no kernel for, or does with torch instead."""
    told = knobs.settings()
    found = [
        Problem(name, "DeepSpeed quantizes by a CUDA kernel", (False,))
        for name in ("zero_quantized_weights", "zero_quantized_gradients")
        if told.get(name) and platform.backend == "gloo"
    ]
    if told.get("partition_activations"):
        reason = "the trial program recomputes by torch's checkpointing, which keeps activations whole"
        found.append(Problem("partition_activations", reason, (False,)))
    return found


def _rare_problems(devices: int, knobs: Knobs) -> list[Problem]:
    told, found = knobs.settings(), []
    partition = int(told.get("zero_hpz_partition_size", 1))
    if devices % partition:  # groups.py, _create_zero_param_parallel_group
        reason = f"groups of {partition} ranks do not divide the {devices} devices"
        found.append(Problem("zero_hpz_partition_size", reason, tuple(nearest_divisors(devices, partition))))
    if told.get("offload_param") == "cpu" and knobs.zero_stage != 3:
        reason = f"weights are offloaded by ZeRO-3 alone, but zero_stage is {knobs.zero_stage or 0}"
        found.append(Problem("offload_param", reason, ("none",)))
    if told.get("partition_activations") and (knobs.tp or 1) == 1:
        found.append(
            Problem("partition_activations", "splits over tensor-parallel ranks, but tp is 1", (False,))
        )
    return found


def _zero_optimization(knobs: Knobs) -> dict[str, Any]:
    """The section with every usual ZeRO setting spelled out; a stage ignores those of other stages."""
    told = knobs.settings()
    section: dict[str, Any] = {"stage": knobs.zero_stage}
    section |= {
        name: told[name] for name in (*ZERO, *RARE) if name in told and name not in _OUTSIDE_ZERO_SECTION
    }
    for name in ("offload_optimizer", "offload_param"):
        if told.get(name) == "cpu":
            section[name] = {"device": "cpu"}
    return section
