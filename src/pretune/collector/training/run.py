"""Build what a trial trains: process group, model, data and engine, for real, from its TrialSpec.

Trials train on synthetic tokens, or on the file that the environment variable ``PRETUNE_TOKENS`` names
(:class:`~pretune.collector.data.TokenFile` says in which form). Set it where pretune is started: the
launchers hand it on, and every host must see the file.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed

from pretune.collector.process import TOKENS
from pretune.collector.training.base import Training, execution
from pretune.collector.training.ddp import DDPTraining
from pretune.collector.training.deepspeed import DeepSpeedTraining
from pretune.collector.training.fsdp import FSDPTraining
from pretune.collector.training.pipeline import DeepSpeedPipeline
from pretune.collector.transformer import check
from pretune.datasets.frameworks import framework
from pretune.datasets.trial import TrialSpec
from pretune.errors import InputError

__all__ = ["Training", "build", "join", "leave", "load", "resolve"]


def load(name: str) -> None:
    """Import all that trials of the framework of that name run on, which takes seconds.

    Before memory is counted: an optimizer's first step would import torch's compiler, 100 MiB.
    """
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401

    if name == "deepspeed":
        import deepspeed  # noqa: F401


def resolve(spec: TrialSpec) -> TrialSpec:
    """The same trial with every knob filled in; raises :class:`InputError` when it cannot run here."""
    knobs = framework(spec.framework).resolve(spec.workload, spec.platform, spec.knobs)
    check(spec.workload.model, execution(knobs))
    return spec.model_copy(update={"knobs": knobs})


def join(spec: TrialSpec, digest: str) -> torch.device:
    """Set threads and device, join the process group, and see that all ranks read the same files."""
    if spec.knobs.threads_per_rank:
        torch.set_num_threads(spec.knobs.threads_per_rank)
    device = torch.device("cpu")
    if spec.platform.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if spec.framework == "deepspeed":
        import deepspeed

        deepspeed.init_distributed(dist_backend=spec.platform.backend, verbose=False)
    else:
        distributed.init_process_group(spec.platform.backend)
    if distributed.get_world_size() != spec.platform.devices:
        raise InputError(
            f"platform: has {spec.platform.devices} devices, but {distributed.get_world_size()} ranks run; "
            "start one rank per device"
        )
    read: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(read, {"spec.json": digest, TOKENS: os.environ.get(TOKENS)})
    for name in read[0]:
        if len({each[name] for each in read}) > 1:
            raise InputError(f"{name}: differs between the ranks; give every host the same file")
    torch.manual_seed(spec.seed)
    return device


def leave() -> None:
    """Destroy the process group: the good end, when every rank comes here."""
    distributed.destroy_process_group()


def build(spec: TrialSpec, device: torch.device) -> Training:
    """The training of a resolved spec. Every rank calls it, after :func:`join`."""
    if spec.framework == "torch_ddp":
        return DDPTraining(spec, device)
    if spec.framework == "fsdp":
        return FSDPTraining(spec, device)
    if (spec.knobs.pp or 1) > 1:
        return DeepSpeedPipeline(spec, device)
    return DeepSpeedTraining(spec, device)
