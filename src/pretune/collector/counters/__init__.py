"""Counters: one provider per source, and all of them together around the measured windows."""

from __future__ import annotations

from pretune.collector.counters.base import CounterProvider, Readings

__all__ = ["CounterProvider", "Counters", "Readings", "all_providers"]


def all_providers() -> list[CounterProvider]:
    """One of each, ready to start, whatever this machine has."""
    from pretune.collector.counters.amd import AmdCounters
    from pretune.collector.counters.deepspeed_comm import DeepSpeedCommCounters
    from pretune.collector.counters.nvml import NvmlCounters
    from pretune.collector.counters.perf import PerfCounters
    from pretune.collector.counters.powercap import PowercapCounters
    from pretune.collector.counters.proc import ProcCounters
    from pretune.collector.counters.psutil_provider import PsutilCounters
    from pretune.collector.counters.torch_memory import TorchMemoryCounters

    return [
        PsutilCounters(),
        ProcCounters(),
        PerfCounters(),
        PowercapCounters(),
        NvmlCounters(),
        AmdCounters(),
        TorchMemoryCounters(),
        DeepSpeedCommCounters(),
    ]


class Counters:
    """All providers as one: the fields ``counters`` and ``missing`` of a Trial."""

    def __init__(self, providers: list[CounterProvider] | None = None) -> None:
        self.providers = all_providers() if providers is None else providers

    @property
    def missing(self) -> dict[str, str]:
        return {name: why for provider in self.providers for name, why in provider.missing.items()}

    @property
    def intrusive(self) -> bool:
        return any(provider.intrusive for provider in self.providers)

    def start(self) -> None:
        for provider in self.providers:
            provider.start()

    def stop(self, steps: int) -> dict[str, float]:
        """Totals, their share of each of ``steps`` optimizer steps, and means, by name."""
        found: dict[str, float] = {}
        for provider in reversed(self.providers):
            read = provider.stop()
            found |= read.totals | read.per_step(steps) | read.means
        return found
