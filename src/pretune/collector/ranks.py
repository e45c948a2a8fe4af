"""The ranks of a job, as the recorder sees them; torch is used only if it is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any


class Ranks:
    """Exchange between the ranks over a small gloo group of its own, away from the training's groups.

    Made on every rank alike, after the training set up its process group. Without one,
    the job is this process alone.
    """

    def __init__(self) -> None:
        self._torch: Any = sys.modules.get("torch")
        distributed: Any = getattr(self._torch, "distributed", None)
        running = bool(distributed) and distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if running else int(os.environ.get("RANK", "0"))
        self.size = distributed.get_world_size() if running else 1
        self._group = distributed.new_group(backend="gloo") if self.size > 1 else None

    def largest(self, values: Sequence[float]) -> list[float]:
        """Each value's maximum over the ranks, on every rank. A barrier: it ends when the last one came."""
        if self._group is None:
            return list(values)
        tensor = self._torch.tensor(values, dtype=self._torch.float64)
        distributed = self._torch.distributed
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        return tensor.tolist()  # type: ignore[no-any-return]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks, on every rank."""
        if self._group is None:
            return [value]
        values = [None] * self.size
        self._torch.distributed.all_gather_object(values, value, group=self._group)
        return values
