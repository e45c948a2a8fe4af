"""Counters: one provider per source, and all of them together around the measured windows."""

from __future__ import annotations

import time

from pretune.collector.counters.base import CounterProvider, Readings, joined

__all__ = ["CounterProvider", "Counters", "Readings", "all_providers"]


def all_providers() -> list[CounterProvider]:
    """One of each, ready to start, whatever this machine has."""
    from pretune.collector.counters.deepspeed_comm import DeepSpeedCommCounters
    from pretune.collector.counters.torch_memory import TorchMemoryCounters

    return [*outside_providers(), TorchMemoryCounters(), DeepSpeedCommCounters()]


def outside_providers(pid: int | None = None) -> list[CounterProvider]:
    """Those that can read the host, and another process than this one: ``pid``, where it is given."""
    from pretune.collector.counters.amd import AmdCounters
    from pretune.collector.counters.nvml import NvmlCounters
    from pretune.collector.counters.perf import PerfCounters
    from pretune.collector.counters.powercap import PowercapCounters
    from pretune.collector.counters.proc import ProcCounters
    from pretune.collector.counters.psutil_provider import PsutilCounters

    return [
        PsutilCounters(pid),
        ProcCounters(pid),
        PerfCounters(pid),
        PowercapCounters(),
        NvmlCounters(),
        AmdCounters(),
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
        self._spells: list[tuple[float, Readings]] = []
        self.resume()

    def pause(self) -> None:
        """What is read until ``resume`` is none of it."""
        self._spells.append((time.perf_counter() - self._resumed_s, self.read()))

    def resume(self) -> None:
        for provider in self.providers:
            provider.start()
        self._resumed_s = time.perf_counter()

    def stop(self, steps: int) -> dict[str, float]:
        """Totals, their share of each of ``steps`` optimizer steps, and means, by name, without pauses."""
        self.pause()
        return joined(self._spells).by_name(steps)

    def read(self) -> Readings:
        """Stop, with the readings of all as one."""
        every = [provider.stop() for provider in reversed(self.providers)]
        return joined([(1.0, read) for read in every])
