"""The devices that a configuration is to run on, node by node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pretune.datasets.frameworks.base import Problem
from pretune.errors import InputError


@dataclass(frozen=True)
class Devices:
    """``nodes``: the devices of each; one entry where nothing is said of nodes."""

    nodes: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> Self:
        """``8``, ``4x8`` (nodes x devices of each) or ``4+2`` (nodes that differ).

        Raises :class:`InputError` for anything else.
        """
        try:
            nodes: list[int] = []
            for part in text.lower().split("+"):
                times, _, each = part.rpartition("x")
                nodes += [int(each)] * int(times or 1)
        except ValueError:
            nodes = []
        if not nodes or min(nodes) < 1 or len(nodes) > 1_000_000:
            raise InputError(f"--devices {text!r}: give a number, NODESxDEVICES (4x8), or a sum (4+2)")
        return cls(tuple(nodes))

    @property
    def count(self) -> int:
        return sum(self.nodes)

    def even(self) -> tuple[str, ...]:
        """The most devices that are as many on every node, such as ``2x8`` of 8 + 8 + 2."""
        found = {each: sum(node >= each for node in self.nodes) for each in set(self.nodes)}
        each = max(found, key=lambda each: (found[each] * each, each))
        return (f"{found[each]}x{each}",)

    def torn(self, degree: int, name: str) -> list[Problem]:
        """A problem where groups of ``degree`` neighbours, in rank order, would lie on two unequal nodes.

        On equal nodes a group that spans them is slow but regular; on unequal ones each group has another
        shape, which no framework's rank order foresees.
        """
        if degree == 1 or len(set(self.nodes)) == 1 or all(n % degree == 0 for n in self.nodes):
            return []
        fits = [d for d in range(1, degree) if all(n % d == 0 for n in self.nodes)]
        shown = " + ".join(map(str, self.nodes))
        reason = f"groups of {degree} do not divide nodes of {shown} devices: one would be torn between nodes"
        return [Problem(name, reason, tuple(fits[-1:]))]
