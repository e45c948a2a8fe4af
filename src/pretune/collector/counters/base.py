"""What a machine can say about itself while a trial is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class CounterProvider(ABC):
    """One source of readings. Making one never raises: what the machine lacks is in ``missing``.

    Readings are named with their unit (``cpu_user_s``, ``net_sent_bytes.eth0``) and cover
    the time between ``start`` and ``stop``; those of gauges are means over it.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        """What cannot be read here (this provider's name, or one reading's) -> the reason."""

    @abstractmethod
    def start(self) -> None:
        """Begin. Cheap: the training waits for it."""

    @abstractmethod
    def stop(self) -> dict[str, float]:
        """The readings since ``start``; empty when everything is missing."""
