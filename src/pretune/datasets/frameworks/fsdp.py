"""FSDP2 with DTensor's tensor parallelism and torch's pipelines, as torchtitan drives them.

Rules are those of torchtitan 0.2 (``ParallelDims``, ``parallelize_llama``, ``pipeline_llm``) and of
torch 2.13's pipeline schedules.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pretune.datasets.frameworks.base import Collective, Framework, Problem, installed
from pretune.datasets.frameworks.common import ELEMENT_BYTES, LAYOUT, merged
from pretune.datasets.frameworks.fsdp_knobs import COMPUTE, PARALLEL, SCHEDULES, SHARDING
from pretune.datasets.frameworks.fsdp_toml import train_toml
from pretune.datasets.frameworks.legality import filled_layout, layout_problems, one_of, refuse_parallelism
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.stated import nearest_divisors
from pretune.datasets.workload import ModelSpec, Workload

_DDP_BUCKET = 100 * 2**20  # bytes; torchtitan's, where nothing is sharded
# settings that the trial program has not, and what is nearest to them
_NOT_BUILT: tuple[tuple[str, KnobValue, KnobValue], ...] = (
    ("precision", "fp8", "bf16"),
    ("offload_optimizer", "cpu", "none"),
    ("selective_operations", True, False),
)
_UNEVEN = ("vocabulary", "layers", "layers per stage")  # what is split unevenly


class FSDP(Framework):
    """A torchtitan job: ``torchrun -m torchtitan.train``."""

    name = "fsdp"
    distribution = "torchtitan"
    knobs: ClassVar = merged(LAYOUT, SHARDING, PARALLEL, COMPUTE)
    script = "-m torchtitan.train --job.config_file train.toml --model.name ... --model.flavor ..."

    def problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        if wrong := self.wrong_values(knobs):
            return wrong
        problems = layout_problems(workload, platform, knobs, uneven=_UNEVEN)
        asked = knobs.model_copy(update={"precision": knobs.precision or workload.precision})
        problems += one_of(asked, "precision", ("fp32", "bf16", "fp8"), "is not what torchtitan trains in")
        if workload.optimizer != "adamw":
            problems.append(Problem("optimizer", f"torchtitan has no {workload.optimizer}", ("adamw",)))
        told = self.filled(workload, platform, knobs).settings()
        problems += _sharding(told) + _pipeline(workload, told) + _splits(workload, told)
        return problems + _compute(told)

    def program_problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        """The trial program shards over dp; the rest of torchtitan needs a script of one's own."""
        told: dict[str, Any] = self.filled(workload, platform, knobs).settings()
        problems = refuse_parallelism(filled_layout(workload, platform, knobs), knobs)
        if told["dp_shard"] == 1 < told["dp"]:
            problems.append(Problem("dp_shard", "1 only replicates, as torch_ddp does", (told["dp"],)))
        for name, value, instead in _NOT_BUILT:
            if told[name] == value:
                reason = f"{value} is not in the built-in trial program: it needs a command of your own"
                problems.append(Problem(name, reason, (instead,)))
        return problems

    def version_problems(self, knobs: Knobs, version: str | None = None) -> list[Problem]:
        version = version or installed(self.distribution)
        if version and not version.startswith("0.2."):
            reason = f"torchtitan {version} is installed; train.toml is what torchtitan 0.2 reads"
            return [Problem("framework", reason)]
        return super().version_problems(knobs, version)

    def filled(self, workload: Workload, platform: Platform, knobs: Knobs) -> Knobs:
        derived = filled_layout(workload, platform, knobs)
        told = knobs.settings()
        dp = derived["dp"]
        shard = told.get("dp_shard") or max(dp // int(told.get("dp_replicate", 1)), 1)
        derived |= {"dp_shard": shard, "dp_replicate": max(dp // int(shard), 1)}
        derived["zero_stage"] = 3 if int(shard) * derived["cp"] > 1 else 0
        derived["sequence_parallel"] = derived["tp"] > 1
        derived["pipeline_schedule"] = "Interleaved1F1B" if derived["vp"] > 1 else "1F1B"
        derived["communication_data_type"] = "fp32"
        derived["precision"] = knobs.precision or workload.precision
        return self.with_defaults(knobs, derived)

    def files(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """``train.toml`` of torchtitan 0.2: batch, layout and knobs, and neither model nor data."""
        return {"train.toml": train_toml(workload, knobs)}

    def told(self, workload: Workload, knobs: Knobs) -> dict[str, KnobValue]:
        return {"model": f"--model.name and --model.flavor of {workload.model.name}", "data": "yours"}

    def unread(self, platform: Platform, knobs: Knobs) -> dict[str, str]:
        found = super().unread(platform, knobs)
        selective = knobs.activation_checkpointing in (None, "selective")
        unless = {
            "selective_every": (selective, "recomputation is selective"),
            "selective_operations": (selective, "recomputation is selective"),
            "pipeline_schedule": ((knobs.pp or 1) > 1, "pp is above 1"),
            "cp_rotate_method": ((knobs.cp or 1) > 1, "cp splits sequences"),
        }
        return found | {
            name: f"only read where {what}"
            for name, (read, what) in unless.items()
            if name in knobs.settings() and not read
        }

    def collectives(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Collective]:
        """Those of the data-parallel group, each micro batch, unit by unit: layers, embeddings, output.

        Weights are gathered for the forward pass and, where they were dropped, for the backward pass; by
        default the output's never are, with which tied embeddings are one unit. Gradients are
        reduce-scattered, and under hybrid sharding each rank's shard all-reduced over the copies (Zhao et al.
        2023, arXiv:2304.11277, sections 3.2 and 3.2.2). Over dp alone those that the trial program is
        seen to issue; stages and tensor-parallel ranks are taken as equal, and what tensor, pipeline, context
        and expert parallelism send is left out.
        """
        told = knobs.settings()
        shard, copies = int(told["dp_shard"]) * (knobs.cp or 1), int(told["dp_replicate"])
        model, stages, tp = workload.model, knobs.pp or 1, knobs.tp or 1
        elements, steps = model.parameters // (stages * tp), knobs.accumulation or 1
        if shard == 1:
            calls = math.ceil(4 * elements / _DDP_BUCKET) * steps
            return [Collective("all_reduce", calls, 4 * elements * steps)] if copies > 1 else []
        units = model.layers // stages + (1 if model.tied_embeddings else 2)
        width = ELEMENT_BYTES["bf16" if told["precision"] == "fp8" else str(told["precision"])]
        output = _output(model, tp)
        again, dropped = {
            "never": (0, 0),
            "always": (units, elements),
            "default": (0, 0) if stages > 1 else (units - 1, elements - output),
        }[str(told["reshard_after_forward"])]
        found = [
            Collective("all_gather", steps * (units + again), steps * (elements + dropped) * width),
            Collective("reduce_scatter", steps * units, steps * elements * 4),
        ]
        if copies > 1:
            found.append(Collective("all_reduce", steps * units, steps * elements // shard * 4))
        return found


def _output(model: ModelSpec, tp: int) -> int:
    """Elements of the unit that stays gathered for the backward pass: last norm, output, what is tied."""
    rows = model.vocabulary // tp + (2 if model.norm == "layernorm" else 1)
    if model.tied_embeddings and model.positions == "learned":
        rows += model.max_positions
    return rows * model.hidden_size


def _sharding(told: dict[str, Any]) -> list[Problem]:
    dp, shard, copies = told["dp"], told["dp_shard"], told["dp_replicate"]
    found = []
    if shard * copies != dp:
        reason = f"dp_replicate {copies} x dp_shard {shard} = {shard * copies}, but dp is {dp}"
        found.append(Problem("dp_shard", reason, tuple(nearest_divisors(dp, shard))))
    replicated = shard * told["cp"] == 1
    if told["zero_stage"] != (0 if replicated else 3):
        reason = f"{told['zero_stage']} is not what dp_shard {shard} makes of it"
        found.append(Problem("zero_stage", reason, (0 if replicated else 3,)))
    if replicated and copies > 1 and told["tp"] * told["pp"] > 1:
        reason = "weights that are only replicated are not split by tp or pp too; shard them"
        found.append(Problem("dp_shard", reason, (copies,)))
    if told["offload_optimizer"] == "cpu" and replicated:
        found.append(Problem("offload_optimizer", "cpu needs sharded weights; set dp_shard", ("none",)))
    if told["communication_data_type"] != "fp32":
        found.append(Problem("communication_data_type", "gradients are reduced in fp32 only", ("fp32",)))
    return found


def _pipeline(workload: Workload, told: dict[str, Any]) -> list[Problem]:
    pp, vp, name, micro_batches = (told[key] for key in ("pp", "vp", "pipeline_schedule", "accumulation"))
    if pp == 1:
        return []
    found, stages, weight = (
        [],
        pp * vp,
        workload.model.layers + 2,
    )  # embeddings and output count as a layer each
    if stages > weight:
        reason = f"{stages} stages are more than {workload.model.layers} layers, embeddings and output"
        found.append(Problem("vp" if vp > 1 else "pp", reason, (weight // pp if vp > 1 else weight,)))
    elif vp > 2 and math.ceil(weight / math.ceil(weight / stages)) != stages:
        reason = f"{weight} layers, embeddings and output do not make {stages} stages of equally many"
        found.append(Problem("vp", reason, (2,)))
    least, most = SCHEDULES[name]
    if not least <= vp <= (most or vp):
        fitting = tuple(each for each, (low, high) in SCHEDULES.items() if low <= vp <= (high or vp))
        found.append(Problem("pipeline_schedule", f"{name} does not run {vp} chunks per rank", fitting))
    rounds = max(1, micro_batches // pp)
    if name.startswith("Interleaved") and micro_batches % rounds:
        below = micro_batches // pp * pp
        reason = f"{name} takes micro batches in {rounds} equal rounds, not {micro_batches}"
        found.append(Problem("accumulation", reason, (below, below + pp)))
    if name in ("1F1B", "GPipe", "DualPipeV") and micro_batches < stages:
        reason = f"{name} needs as many micro batches as the {stages} stages, not {micro_batches}"
        found.append(Problem("accumulation", reason, (stages,)))
    return found


def _splits(workload: Workload, told: dict[str, Any]) -> list[Problem]:
    length, tp, cp = workload.sequence_length, told["tp"], told["cp"]
    found = []
    if told["sequence_parallel"] != (tp > 1):
        found.append(Problem("sequence_parallel", "is on exactly where tp is above 1", (tp > 1,)))
    if tp * cp > 1 and length % (2 * cp * tp):
        reason = f"a sequence of {length} is no multiple of 2 x cp x tp = {2 * cp * tp}"
        found.append(Problem("cp" if cp > 1 else "tp", reason))
    if told["expert_tp"] not in (1, tp):
        found.append(Problem("expert_tp", f"{told['expert_tp']} is neither 1 nor tp {tp}", (1, tp)))
    shared = told["dp_shard"] * cp * (1 if told["expert_tp"] == tp else tp)
    if shared % told["ep"]:
        reason = f"{told['ep']} does not divide the {shared} ranks that share experts"
        found.append(Problem("ep", reason, tuple(nearest_divisors(shared, told["ep"]))))
    return found


def _compute(told: dict[str, Any]) -> list[Problem]:
    found = []
    if told["async_tp"] and not (told["compile"] and told["tp"] > 1):
        found.append(Problem("async_tp", "needs compile and tp above 1", (False,)))
    if told["float8_recipe"] != "tensorwise" and told["precision"] != "fp8":
        found.append(Problem("float8_recipe", "needs precision fp8", ("tensorwise",)))
    if told["float8_all_gather"] and (told["precision"], told["float8_recipe"]) != ("fp8", "tensorwise"):
        found.append(
            Problem("float8_all_gather", "needs precision fp8 and float8_recipe tensorwise", (False,))
        )
    return found
