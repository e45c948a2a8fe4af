"""Plain PyTorch DistributedDataParallel: replicas, and gradients all-reduced in buckets."""

from __future__ import annotations

import json
import math
from typing import ClassVar

from pretune.datasets.frameworks.base import Collective, Framework, KnobDeclaration, Problem
from pretune.datasets.frameworks.common import ELEMENT_BYTES, LAYOUT, PROGRAM, declare, merged
from pretune.datasets.frameworks.legality import filled_layout, layout_problems, one_of, refuse_parallelism
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.workload import Workload

_MIB = 2**20


class TorchDDP(Framework):
    """``torch.nn.parallel.DistributedDataParallel`` with ``no_sync`` between optimizer steps."""

    name = "torch_ddp"
    distribution = "torch"
    knobs: ClassVar = merged(
        LAYOUT,
        declare(
            KnobDeclaration(
                "ddp_bucket_mb",
                25.0,
                "MiB of gradients that one all-reduce takes (DDP's bucket_cap_mb).",
                takes=float,
            )
        ),
        PROGRAM,
    )

    def problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        if wrong := self.wrong_values(knobs):
            return wrong
        problems = layout_problems(workload, platform, knobs)
        asked = knobs.model_copy(update={"precision": knobs.precision or workload.precision})
        problems += one_of(asked, "precision", ("fp32", "bf16"), "is not run by the built-in trial program")
        if knobs.zero_stage:
            problems.append(
                Problem("zero_stage", f"{knobs.zero_stage} shards states; DDP replicates them", (0,))
            )
        if knobs.offload_optimizer == "cpu":
            problems.append(Problem("offload_optimizer", "DDP keeps the optimizer on the device", ("none",)))
        return problems

    def program_problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        """No tp: torch 2.13's DDP makes new weights of DTensors after each forward pass
        (``tensor/parallel/ddp.py``), of which its reducer and the optimizer know nothing."""
        return refuse_parallelism(filled_layout(workload, platform, knobs), knobs)

    def filled(self, workload: Workload, platform: Platform, knobs: Knobs) -> Knobs:
        derived = filled_layout(workload, platform, knobs)
        derived["precision"] = knobs.precision or workload.precision
        return self.with_defaults(knobs, derived)

    def files(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """``ddp.json``: the keyword arguments of DistributedDataParallel."""
        arguments = {"bucket_cap_mb": knobs.settings()["ddp_bucket_mb"], "gradient_as_bucket_view": True}
        return {"ddp.json": json.dumps(arguments, indent=2) + "\n"}

    def told(self, workload: Workload, knobs: Knobs) -> dict[str, KnobValue]:
        ours = {name: knobs.settings()[name] for name in ("micro_batch", "accumulation", "precision")}
        wrapped = {"DistributedDataParallel": "with the arguments in ddp.json"}
        return {**wrapped, **ours, **super().told(workload, knobs)}

    def collectives(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Collective]:
        """One whole all-reduce of the gradients, in buckets (Li et al., VLDB 2020, sec. 3.2).

        DDP makes its first bucket 1 MiB, so that communication starts early.
        Derived: buckets are cut between parameters, so the number of calls is approximate.
        """
        if knobs.dp in (None, 1):
            return []
        size = workload.model.parameters * ELEMENT_BYTES[knobs.precision or workload.precision]
        bucket = float(knobs.settings()["ddp_bucket_mb"]) * _MIB
        first = min(bucket, _MIB)
        return [Collective("all_reduce", 1 + math.ceil(max(size - first, 0) / bucket), size)]
