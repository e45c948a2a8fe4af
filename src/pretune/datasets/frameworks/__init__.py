"""The frameworks that pretune can tune, one file each, behind one interface (``base.py``)."""

from __future__ import annotations

from pretune.datasets.frameworks.base import Collective, Framework, KnobDeclaration, Problem
from pretune.datasets.frameworks.deepspeed import DeepSpeed
from pretune.datasets.frameworks.fsdp import FSDP
from pretune.datasets.frameworks.megatron import Megatron
from pretune.datasets.frameworks.torch_ddp import TorchDDP
from pretune.errors import InputError

__all__ = ["FRAMEWORKS", "Collective", "Framework", "KnobDeclaration", "Problem", "framework"]

FRAMEWORKS: dict[str, Framework] = {each.name: each for each in (DeepSpeed(), FSDP(), Megatron(), TorchDDP())}


def framework(name: str) -> Framework:
    """The framework of that name; raises :class:`InputError` naming the known ones."""
    try:
        return FRAMEWORKS[name]
    except KeyError:
        raise InputError(f"framework: {name!r} is not known; use one of {', '.join(FRAMEWORKS)}") from None
