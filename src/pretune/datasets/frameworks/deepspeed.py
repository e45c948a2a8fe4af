"""DeepSpeed 0.19.8: ZeRO stages 0 to 3 with their communication settings."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pretune.datasets.frameworks import replica, zero
from pretune.datasets.frameworks.base import Collective, Framework, KnobDeclaration, Problem
from pretune.datasets.frameworks.common import LAYOUT, PROGRAM, declare, inert, merged
from pretune.datasets.frameworks.legality import filled_layout, layout_problems, one_of, refuse_parallelism
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.workload import Workload

_BUCKET = 500_000_000

ZERO = declare(
    KnobDeclaration(
        "zero_stage", 0, "Sharded over dp: nothing; optimizer states; gradients too; weights too."
    ),
    KnobDeclaration(
        "reduce_bucket_size",
        _BUCKET,
        "Gradient elements reduced at a time.",
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "allgather_bucket_size",
        _BUCKET,
        "Weight elements gathered at a time after the step.",
        inert=inert("whole partitions are gathered by all_gather_into_tensor, unsharded", "gloo", "nccl"),
        zero_stages=(1, 2),
        free=True,
    ),
    KnobDeclaration(
        "overlap_comm",
        None,
        "Reduce gradients while the backward pass runs; on by default at ZeRO-3 only.",
        inert=inert("the CPU accelerator has no streams to overlap on", "gloo"),
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "reduce_scatter",
        True,
        "Reduce-scatter the gradients at ZeRO-3, else all-reduce them. At ZeRO-1 and ZeRO-2 it changes "
        "nothing on gloo: the same all-reduce either way.",
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "allgather_partitions",
        True,
        "Gather updated weights in one collective instead of broadcasts.",
        inert=inert("the flag is read and then not used by ZeRO-1, ZeRO-2 and ZeRO-3", "gloo", "nccl"),
        free=True,
    ),
    KnobDeclaration(
        "use_multi_rank_bucket_allreduce",
        True,
        "All-reduce a bucket of several ranks' gradients, else reduce to each owner.",
        zero_stages=(1, 2),
        free=True,
    ),
    KnobDeclaration(
        "contiguous_gradients",
        True,
        "Copy gradients into one buffer of reduce_bucket_size elements as they come. On gloo it changes "
        "nothing, except that off it makes ZeRO-3 reduce-scatter even with reduce_scatter off.",
        zero_stages=(1, 2, 3),
        free=True,
    ),
    KnobDeclaration(
        "stage3_prefetch_bucket_size",
        50_000_000,
        "Weight elements fetched ahead.",
        zero_stages=(3,),
        free=True,
    ),
    KnobDeclaration(
        "stage3_param_persistence_threshold",
        100_000,
        "Weights up to this size stay whole.",
        zero_stages=(3,),
    ),
    KnobDeclaration(
        "stage3_max_live_parameters",
        1_000_000_000,
        "Weight elements kept gathered at most.",
        zero_stages=(3,),
        free=True,
    ),
    KnobDeclaration(
        "communication_data_type",
        None,
        "Type that gradients are reduced in; that of the weights unless set.",
        numerics=True,
    ),
    KnobDeclaration("offload_optimizer", "none", "Where optimizer states live and the step runs."),
    KnobDeclaration(
        "torch_adam",
        None,
        "Step with torch.optim, not DeepSpeed's compiled AdamW; default on gloo only.",
        takes=bool,
    ),
)

_OUTSIDE_ZERO_SECTION = {"zero_stage", "communication_data_type", "offload_optimizer", "torch_adam"}


class DeepSpeed(Framework):
    """``deepspeed.initialize``: ZeRO over dp, AutoTP over tp, and a ``PipelineModule`` where pp is over 1."""

    name = "deepspeed"
    distribution = "deepspeed"
    knobs: ClassVar = merged(LAYOUT, ZERO, PROGRAM)
    script_options = "--deepspeed_config ds_config.json (Hugging Face Trainer: --deepspeed ds_config.json)"

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
        return problems

    def program_problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        problems = refuse_parallelism(filled_layout(workload, platform, knobs), knobs, runs=("tp", "pp"))
        if knobs.compile and (knobs.tp or 1) > 1:  # on two busy cores 4 minutes were not enough for a toy
            reason = f"torch.compile breaks at every collective of AutoTP (tp {knobs.tp}), and takes minutes"
            problems.append(Problem("compile", reason, (False,)))
        return problems

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


def _zero_optimization(knobs: Knobs) -> dict[str, Any]:
    """The section with every ZeRO setting spelled out; a stage ignores those of other stages."""
    section: dict[str, Any] = {"stage": knobs.zero_stage}
    section |= {name: getattr(knobs, name) for name in ZERO if name not in _OUTSIDE_ZERO_SECTION}
    if knobs.offload_optimizer == "cpu":
        section["offload_optimizer"] = {"device": "cpu"}
    return section
