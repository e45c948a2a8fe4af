"""Allocator events of torch's caching allocator on this rank's GPU."""

from __future__ import annotations

import sys
from typing import Any

from pretune.collector.counters.base import CounterProvider

# torch.cuda.memory_stats key -> reading; retries and driver calls are what memory pressure costs
_STATISTICS = {
    "num_alloc_retries": "allocator_retries",
    "num_device_alloc": "allocator_device_allocations",
    "num_device_free": "allocator_device_frees",
    "allocated_bytes.all.allocated": "allocator_allocated_bytes",
}


class TorchMemoryCounters(CounterProvider):
    """How often and how much the allocator had to work while the windows were measured."""

    name = "torch_memory"

    def __init__(self) -> None:
        super().__init__()
        torch: Any = sys.modules.get("torch")
        self._cuda = torch.cuda if torch is not None and torch.cuda.is_initialized() else None
        if torch is None:
            self.missing[self.name] = "torch is not loaded"
        elif self._cuda is None:
            self.missing[self.name] = "torch uses no GPU here, and its CPU allocator keeps no statistics"

    def start(self) -> None:
        self._before = self._absolute()

    def stop(self) -> dict[str, float]:
        after = self._absolute()
        return {name: value - self._before[name] for name, value in after.items() if name in self._before}

    def _absolute(self) -> dict[str, float]:
        if self._cuda is None:
            return {}
        statistics = self._cuda.memory_stats()
        return {name: float(statistics[key]) for key, name in _STATISTICS.items() if key in statistics}
