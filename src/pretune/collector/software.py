"""Versions of what a trial ran on: they are no part of a platform, but each trial keeps them."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

_PACKAGES = ("pretune", "torch", "deepspeed", "numpy", "transformers", "accelerate")


def versions() -> dict[str, str]:
    """Component -> version, of the packages this process has loaded, Python, the kernel and CUDA's parts."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        if name in sys.modules:
            found[name] = metadata.version(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
