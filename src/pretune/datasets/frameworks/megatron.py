"""Megatron-LM: tensor, pipeline, context and expert parallelism, with its distributed optimizer.

Rules are those of Megatron-LM's ``validate_args`` and ``TransformerConfig`` (core 0.16 to 0.20).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pretune.datasets.frameworks.base import Collective, Framework, Problem
from pretune.datasets.frameworks.common import ELEMENT_BYTES, LAYOUT, PROGRAM, chosen, merged
from pretune.datasets.frameworks.legality import filled_layout, layout_problems, one_of, own_script_only
from pretune.datasets.frameworks.megatron_arguments import argument_list
from pretune.datasets.frameworks.megatron_knobs import COMPUTE, DATA_PARALLEL, MODEL_PARALLEL
from pretune.datasets.frameworks.megatron_rules import layout_rules
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.workload import Workload

PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "mxfp8")
_BUCKET, _BUCKET_PER_REPLICA = 40_000_000, 1_000_000  # core/distributed/distributed_data_parallel.py


class Megatron(Framework):
    """A script on Megatron-LM's ``pretrain``, such as its ``pretrain_gpt.py``."""

    name = "megatron"
    distribution = "megatron-core"
    knobs: ClassVar = merged(LAYOUT, DATA_PARALLEL, MODEL_PARALLEL, chosen(PROGRAM, "precision"), COMPUTE)
    script = "pretrain_gpt.py $(cat megatron.args)"

    def problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        if wrong := self.wrong_values(knobs):
            return wrong
        problems = layout_problems(workload, platform, knobs, uneven=("vocabulary",))  # which is padded
        asked = knobs.model_copy(update={"precision": knobs.precision or workload.precision})
        problems += one_of(asked, "precision", PRECISIONS, "is not what this version writes for Megatron-LM")
        full = self.filled(workload, platform, knobs)
        told = full.settings()
        if told["sequence_parallel"] and told["tp"] == 1:  # Megatron-LM would leave it out without a word
            reason = "splits norms over tensor-parallel ranks, but tp is 1"
            problems.append(Problem("sequence_parallel", reason, (False,)))
        problems += layout_rules(told, workload.sequence_length, workload.model)
        return problems + _data_parallel(workload, told) + _recomputation(workload, told)

    def program_problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        return own_script_only("Megatron-LM")

    def filled(self, workload: Workload, platform: Platform, knobs: Knobs) -> Knobs:
        derived = filled_layout(workload, platform, knobs)
        precision = knobs.precision or workload.precision
        derived |= {"precision": precision, "expert_tp": derived["tp"]}
        derived["reduce_bucket_size"] = max(_BUCKET, _BUCKET_PER_REPLICA * derived["dp"])
        derived["communication_data_type"] = "fp16" if precision == "fp16" else "fp32"
        if derived["tp"] * derived["cp"] > 1:  # validate_args wants it on devices before Blackwell
            derived["env.CUDA_DEVICE_MAX_CONNECTIONS"] = 1
        return self.with_defaults(knobs, derived)

    def files(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """``megatron.args``: the arguments of model, batch and knobs, one to a line."""
        return {"megatron.args": argument_list(workload, knobs)}

    def told(self, workload: Workload, knobs: Knobs) -> dict[str, KnobValue]:
        return {
            "data, tokenizer, learning rate, iterations": "are the command's; megatron.args has none of them"
        }

    def unread(self, platform: Platform, knobs: Knobs) -> dict[str, str]:
        found = super().unread(platform, knobs)
        unless = {
            "recompute_method": (knobs.activation_checkpointing == "full", "recomputes whole layers"),
            "recompute_num_layers": (knobs.activation_checkpointing == "full", "recomputes whole layers"),
            "reduce_bucket_size": (bool(knobs.overlap_comm), "overlap_comm cuts gradients into buckets"),
            "overlap_p2p_comm": ((knobs.vp or 1) > 1, "vp interleaves stages"),
            "cp_comm_type": ((knobs.cp or 1) > 1, "cp splits sequences"),
        }
        return found | {
            name: f"only read where {what}"
            for name, (read, what) in unless.items()
            if name in knobs.settings() and not read
        }

    def collectives(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Collective]:
        """Those of the data-parallel group: gradients in buckets and, sharded, the weights back.

        Derived (Megatron-LM, docs of the distributed optimizer), not observed; stages and
        tensor-parallel ranks are taken as equal. What tensor, pipeline, context and expert parallelism
        send is left out: :mod:`pretune.model.physics.communication` estimates it.
        """
        if (knobs.dp or 1) * (knobs.cp or 1) == 1:
            return []
        elements = workload.model.parameters // ((knobs.tp or 1) * (knobs.pp or 1))
        precision = knobs.precision or workload.precision
        wire = ELEMENT_BYTES[knobs.communication_data_type or precision]
        bucket = (knobs.reduce_bucket_size or _BUCKET) if knobs.overlap_comm else elements
        calls = math.ceil(elements / bucket)
        if not knobs.zero_stage:
            return [Collective("all_reduce", calls, elements * wire)]
        weights = 4 if precision == "fp32" else 2  # fp8 weights are gathered in 16 bits
        return [
            Collective("reduce_scatter", calls, elements * wire),
            Collective("all_gather", calls, elements * weights),
        ]


def _data_parallel(workload: Workload, told: dict[str, Any]) -> list[Problem]:
    found, sharded = [], told["zero_stage"] == 1
    if told["zero_stage"] > 1:
        reason = f"{told['zero_stage']} also shards gradients; the distributed optimizer is stage 1"
        found.append(Problem("zero_stage", reason, (0, 1)))
    if told["overlap_param_gather"] and not (sharded and told["overlap_comm"]):
        found.append(Problem("overlap_param_gather", "needs zero_stage 1 and overlap_comm", (False,)))
    if told["offload_optimizer"] == "cpu" and not (sharded and workload.optimizer == "adamw"):
        found.append(Problem("offload_optimizer", "cpu needs zero_stage 1 and optimizer adamw", ("none",)))
    usual = "fp16" if told["precision"] == "fp16" else "fp32"
    narrow = told["communication_data_type"] == "bf16" and told["precision"] in ("bf16", "fp8", "mxfp8")
    if told["communication_data_type"] != usual and not narrow:
        reason = f"gradients of {told['precision']} are not reduced in {told['communication_data_type']}"
        found.append(Problem("communication_data_type", reason, (usual,)))
    return found


def _recomputation(workload: Workload, told: dict[str, Any]) -> list[Problem]:
    layers = workload.model.layers // told["pp"]
    if told["activation_checkpointing"] != "full" or told["recompute_num_layers"] <= layers:
        return []
    reason = f"{told['recompute_num_layers']} is more than the {layers} layers of a stage"
    return [Problem("recompute_num_layers", reason, (layers,))]
