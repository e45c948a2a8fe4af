"""What a running job says of itself: its platform, its model, its precision."""

from __future__ import annotations

import os
from typing import Any

from pretune.datasets.platform import Fingerprint, Platform
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError


def platform_here(given: Platform | str | None = None) -> Platform:
    """The platform that this job runs on: ``given`` (a file too), else as its ranks' environment says.

    Hosts are taken to be alike; links are unknown, and so is a CPU's peak: ``pretune probe`` measures them.
    """
    if isinstance(given, Platform):
        return given
    if given is not None:
        return Platform.from_yaml(given)
    import torch

    from pretune.collector.detect import accelerator_of
    from pretune.collector.probe.machine import look

    os.environ.setdefault("LOCAL_WORLD_SIZE", "1")
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    machine = look(device)
    accelerator = accelerator_of(machine, Fingerprint())
    return Platform(
        name=f"{accelerator.name}-{world // local}x{local}",
        accelerator=accelerator,
        devices_per_node=local,
        nodes=max(world // local, 1),
        backend=machine.backend,
    )


def model_here(model: Any, given: ModelSpec | None = None) -> ModelSpec:
    """The shape of ``model``: ``given``, else from its Hugging Face ``config``."""
    if given is not None:
        return given
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        raise InputError("recorder: the model has no Hugging Face config; give model=ModelSpec(...)")
    return ModelSpec.from_config(config.to_dict(), f"recorder: config of {type(model).__name__}")
