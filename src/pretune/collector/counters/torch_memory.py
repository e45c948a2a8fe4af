"""Allocator events of torch's caching allocator on this rank's GPU."""

from __future__ import annotations

import sys
from typing import Any

from pretune.collector.counters.base import CounterProvider, Readings, grown

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

    def start(self) -> None:
        torch: Any = sys.modules.get("torch")
        self._cuda = torch.cuda if torch is not None and torch.cuda.is_initialized() else None
        if torch is None:
            self.missing[self.name] = "torch is not loaded"
        elif self._cuda is None:
            self.missing[self.name] = "torch uses no GPU here, and its CPU allocator keeps no statistics"
        self._before = self._absolute()

    def stop(self) -> Readings:
        return Readings(grown(self._before, self._absolute()))

    def _absolute(self) -> dict[str, float]:
        if self._cuda is None:
            return {}
        statistics = self._cuda.memory_stats()
        return {name: float(statistics[key]) for key, name in _STATISTICS.items() if key in statistics}
