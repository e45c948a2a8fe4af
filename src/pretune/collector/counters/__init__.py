"""Counters: one provider per source, and all of them together around the measured windows."""

from __future__ import annotations

from pretune.collector.counters.base import CounterProvider

__all__ = ["CounterProvider", "Counters", "all_providers"]


def all_providers() -> list[CounterProvider]:
    """One of each, ready to start, whatever this machine has."""
    from pretune.collector.counters.nvml import NvmlCounters
    from pretune.collector.counters.proc import ProcCounters
    from pretune.collector.counters.psutil_provider import PsutilCounters
    from pretune.collector.counters.torch_memory import TorchMemoryCounters

    return [PsutilCounters(), ProcCounters(), NvmlCounters(), TorchMemoryCounters()]


class Counters:
    """All providers as one: the fields ``counters`` and ``missing`` of a Trial."""

    def __init__(self, providers: list[CounterProvider] | None = None) -> None:
        self.providers = all_providers() if providers is None else providers

    @property
    def missing(self) -> dict[str, str]:
        return {name: why for provider in self.providers for name, why in provider.missing.items()}

    def start(self) -> None:
        for provider in self.providers:
            provider.start()

    def stop(self) -> dict[str, float]:
        return {name: value for provider in self.providers for name, value in provider.stop().items()}
