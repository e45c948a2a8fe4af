"""What a running job says of itself: its platform, its model, and the recorder made from what it tells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.collector.recorder import TrialRecorder
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Fingerprint, Platform
from pretune.datasets.trial import Measure
from pretune.datasets.workload import ModelSpec, Workload
from pretune.errors import InputError

if TYPE_CHECKING:
    from pretune.collector.probe.machine import Machine


def recorder_here(
    workload: Mapping[str, Any],
    knobs: Mapping[str, Any],
    *,
    store: str | Path,
    framework: str,
    platform: Platform | str | None,
    measure: Measure | None,
) -> TrialRecorder:
    """The recorder of a training whose ``workload`` and ``knobs`` its library told; the model was built.

    Raises :class:`InputError` naming the field that is none of pretune's.
    """
    return TrialRecorder(
        workload=Workload.from_mapping(workload, "recorder: workload"),
        platform=platform_here(platform),
        knobs=Knobs.from_mapping(knobs, "recorder: knobs"),
        store=store,
        framework=framework,
        measure=measure,
        late=True,
    )


def optimizer_here(name: str) -> str:
    """Libraries have a dozen of AdamWs; the kernel that they run is no other optimizer."""
    return "adamw" if "adamw" in name.lower() else name.lower()


def platform_here(given: Platform | str | None = None) -> Platform:
    """The platform that this job runs on: ``given`` (a file too), else as its ranks' environment says.

    Hosts are taken to be alike; links are unknown, and so is a CPU's peak: ``pretune probe`` measures them.
    """
    if isinstance(given, Platform):
        return given
    if given is not None:
        return Platform.from_yaml(given)
    import torch

    from pretune.collector.probe.machine import look

    os.environ.setdefault("LOCAL_WORLD_SIZE", "1")
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    return platform_of(look(device), local, world)


def platform_of(machine: Machine, local: int, world: int) -> Platform:
    """``world`` ranks, ``local`` of them on each host, that all run on what ``machine`` is."""
    from pretune.collector.detect import accelerator_of

    accelerator, nodes = accelerator_of(machine, Fingerprint()), max(world // local, 1)
    return Platform(
        name=f"{accelerator.name}-{nodes}x{local}",
        accelerator=accelerator,
        devices_per_node=local,
        nodes=nodes,
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
