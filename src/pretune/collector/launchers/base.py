"""A launcher starts trials somewhere and brings back what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pretune.collector.evidence import STOP
from pretune.datasets.trial import Trial, TrialSpec


@dataclass(frozen=True)
class Handle:
    """A submitted trial: its sheet, and the folder with its logs and evidence."""

    spec: TrialSpec
    folder: Path


@dataclass(frozen=True)
class Reach:
    """Where a launcher starts ranks: ``ranks`` on each of ``nodes``, which talk over ``backend``.

    ``interfaces``: the network interface that each node was told to use, where any was.
    ``here``: on this machine alone, so that its devices are the ranks'.
    """

    nodes: int
    ranks: int
    backend: str
    interfaces: tuple[str | None, ...] = ()
    here: bool = False


class Launcher(ABC):
    """``submit`` a trial, ``poll`` until it ended, ``kill`` it. Use as a context manager."""

    reach: Reach | None = None  # None: it starts no ranks

    @abstractmethod
    def submit(self, spec: TrialSpec) -> Handle:
        """Start the trial and return at once. Raises :class:`LaunchError` when none could start."""

    @abstractmethod
    def poll(self, handle: Handle) -> Trial | None:
        """The trial when it ended, in whatever way; None while it runs."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End every process of the trial, on every host. Returns when they are gone."""

    def stop(self, handle: Handle) -> None:
        """Ask the trial to end with what it has measured, at the next moment that its ranks share."""
        if handle.folder.is_dir():
            (handle.folder / STOP).touch()

    def recover(self, spec: TrialSpec) -> Trial | None:
        """The trial that had ended before an earlier session was killed, from its evidence; else None."""
        return None

    def close(self) -> None:  # noqa: B027
        """Release what the launcher holds (warm workers, connections)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
