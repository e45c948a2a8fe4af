"""What the providers of all vendors' GPUs share: counters before and after, gauges sampled meanwhile."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pretune.collector.counters.base import CounterProvider, Readings, grown
from pretune.collector.counters.sampler import Sampler

SAMPLE_S = 0.2  # NVML itself refreshes utilisation every 1/6 to 1 s, power every 0.1 s


class GpuCounters(CounterProvider):
    """This rank's GPU by its vendor's management library; ``refusals`` are the errors that the library raises
    where a GPU, a driver or the library itself does not have a reading.
    """

    refusals: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._library, self._device = self._open()
        self._sampler = Sampler(self.name, self._sample, SAMPLE_S)

    @abstractmethod
    def _open(self) -> tuple[Any, Any]:
        """The library and this rank's device; two None, and the reason in ``missing``, without them."""

    @abstractmethod
    def _absolute(self) -> dict[str, float]:
        """The counters that the driver keeps."""

    @abstractmethod
    def _sample(self) -> dict[str, float]:
        """The gauges."""

    def start(self) -> None:
        if self._library is not None:
            self._before = self._absolute()
            self._sampler.start()

    def stop(self) -> Readings:
        if self._library is None:
            return Readings()
        means = self._sampler.stop()
        return Readings(grown(self._before, self._absolute()), means)

    def _read(self, reading: str, function: str, *more: Any) -> Any:
        """None, and the reason in ``missing``, where the reading cannot be had."""
        try:
            return getattr(self._library, function)(self._device, *more)
        except self.refusals as error:
            self.missing[f"{self.name}.{reading}"] = str(error)
            return None


def scaled(value: Any, unit: float) -> float | None:
    """A number in ``unit``; None for what is none, such as the "N/A" of what a GPU lacks."""
    return value * unit if isinstance(value, int | float) else None
