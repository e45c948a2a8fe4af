"""What a training framework offers to tune: its knobs, what is legal, the files, the collectives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal

from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import Platform
from pretune.datasets.workload import Workload
from pretune.errors import IllegalKnobs


@dataclass(frozen=True)
class KnobDeclaration:
    """One knob of a framework.

    ``default`` is the framework's own (None: derived, or there is none). ``numerics`` says
    that the knob changes what is computed, so that the loss must be checked; it is a type, and
    the workload's own precision changes nothing. ``inert`` names the backends on which the knob
    changes nothing at any setting of the others, with the reason; ``zero_stages`` the ZeRO stages
    that read it. ``free``: no rule and no derived value looks at its value, so that a space is judged
    without multiplying by it. ``takes``: what its values are, where :class:`Knobs` has no field that says
    so: a type (counts are at least 1, numbers above 0), or the words. ``rare``: a configuration
    holds it only off its default, so that most trials say nothing of it. ``since`` and ``until``: the first
    and the last version of the framework that knows it, where that is known.
    """

    name: str
    default: KnobValue | None
    doc: str
    numerics: bool = False
    inert: Mapping[str, str] = field(default_factory=dict)
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    free: bool = False
    takes: type[bool] | type[int] | type[float] | tuple[str, ...] | None = None
    rare: bool = False
    since: str = ""
    until: str = ""

    def wrong(self, value: KnobValue) -> list[Problem]:
        """A problem when ``value`` is none that the knob takes."""
        near: tuple[KnobValue, ...] = () if self.default is None else (self.default,)
        if isinstance(self.takes, tuple):
            fits, what, near = value in self.takes, "not known", self.takes
        elif self.takes is bool:
            fits, what, near = isinstance(value, bool), "neither true nor false", (True, False)
        elif self.takes is not None:
            numbers = int if self.takes is int else (int, float)
            fits = not isinstance(value, bool) and isinstance(value, numbers) and value > 0
            what = f"not a positive {'whole ' if self.takes is int else ''}number"
        else:
            return []
        return [] if fits else [Problem(self.name, f"{value!r} is {what}", near)]

    def unknown_to(self, framework: str, version: str) -> list[Problem]:
        """A problem when ``version`` of the framework is older or newer than those that know the knob."""
        if self.since and _parts(version) < _parts(self.since):
            return [
                Problem(self.name, f"{framework} {version} is installed, which knows it from {self.since}")
            ]
        if self.until and _parts(version) > _parts(self.until):
            return [
                Problem(self.name, f"{framework} {version} is installed, which knew it up to {self.until}")
            ]
        return []


@dataclass(frozen=True)
class Problem:
    """Why a configuration cannot run: the knob, the reason with its numbers, the nearest legal values.

    ``devices``: the nearest device counts with which it could stay as it is.
    """

    field: str
    reason: str
    nearest: tuple[KnobValue, ...] = ()
    devices: tuple[int, ...] = ()

    def __str__(self) -> str:
        near = f"; nearest: {', '.join(map(str, self.nearest))}" if self.nearest else ""
        counts = f"; or on {' or '.join(map(str, self.devices))} devices" if self.devices else ""
        return f"{self.field}: {self.reason}{near}{counts}"


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind that one optimizer step issues on one rank.

    ``bytes`` is their total, counted once and at the size of the whole (unsharded) tensor. ``group``: the
    ranks among which it runs, by the degree that counts them; of a pipeline, those of the first stage.
    """

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast"]
    calls: int
    bytes: int
    group: Literal["dp", "tp", "pp"] = "dp"


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


@cache
def installed(distribution: str) -> str | None:
    """The version of a distribution beside pretune; None where there is none."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


class Framework(ABC):
    """One framework. Stateless; importing it must not import the framework itself."""

    name: ClassVar[str]
    distribution: ClassVar[str]  # by which it is installed
    knobs: ClassVar[Mapping[str, KnobDeclaration]]
    script: ClassVar[str] = "train.py"  # what torchrun is given, so that a user's script reads the files

    @abstractmethod
    def problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        """Everything that keeps the framework from running this configuration; empty when it is legal."""

    def program_problems(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Problem]:
        """What pretune's own trial program cannot run, though the framework can."""
        return []

    def refusals(
        self, workload: Workload, platform: Platform, knobs: Knobs, own_script: bool = False
    ) -> list[Problem]:
        """Everything that keeps a trial from running: the framework's problems, those of the version that is
        installed here, if one is, and, unless the job runs a script of its own, the trial program's."""
        problems = self.problems(workload, platform, knobs) + self.version_problems(knobs)
        return problems if own_script else problems + self.program_problems(workload, platform, knobs)

    def wrong_values(self, knobs: Knobs) -> list[Problem]:
        """The declared knobs whose values are none that they take: rules look at sound values only."""
        told = knobs.settings()
        return [
            problem for name in told if name in self.knobs for problem in self.knobs[name].wrong(told[name])
        ]

    def version_problems(self, knobs: Knobs, version: str | None = None) -> list[Problem]:
        """The knobs that ``version`` (None: the one that is installed here, if any) does not know."""
        version = version or installed(self.distribution)
        if version is None:
            return []
        told = [self.knobs[name] for name in knobs.settings() if name in self.knobs]
        return [problem for knob in told for problem in knob.unknown_to(self.distribution, version)]

    @abstractmethod
    def files(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """The files that a trial's framework reads, by file name, for resolved knobs."""

    def files_to_use(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """The same for a user's own script: without what is the script's to choose."""
        return self.files(workload, platform, knobs)

    def files_to_follow(self, workload: Workload, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """The same where a trial runs that script: the framework prints its steps, if a file can say so."""
        return self.files_to_use(workload, platform, knobs)

    def told(self, workload: Workload, knobs: Knobs) -> dict[str, KnobValue]:
        """What no file carries: a user's own script has to do it."""
        names = ("activation_checkpointing", "attention", "compile")
        return {name: value for name, value in knobs.settings().items() if name in names}

    @abstractmethod
    def collectives(self, workload: Workload, platform: Platform, knobs: Knobs) -> list[Collective]:
        """What one optimizer step issues, for resolved knobs; a docstring says what of it is left out."""

    def resolve(
        self, workload: Workload, platform: Platform, knobs: Knobs, own_script: bool = False
    ) -> Knobs:
        """The same configuration with every derived and default value filled in.

        Raises :class:`IllegalKnobs` with all problems when it cannot run; see :meth:`refusals`.
        """
        problems = self.refusals(workload, platform, knobs, own_script)
        if problems:
            raise IllegalKnobs(problems)
        return self.filled(workload, platform, knobs)

    @abstractmethod
    def filled(self, workload: Workload, platform: Platform, knobs: Knobs) -> Knobs:
        """``knobs`` with defaults and derived values, without judging them."""

    def default_knobs(self, workload: Workload, platform: Platform, own_script: bool = False) -> Knobs:
        """The stock configuration: micro_batch 1 and the framework's default for everything else.

        Raises :class:`IllegalKnobs` when even that cannot run here.
        """
        return self.resolve(workload, platform, Knobs(micro_batch=1), own_script)

    def unread(self, platform: Platform, knobs: Knobs) -> dict[str, str]:
        """The knobs of ``knobs`` that change nothing beside the others on ``platform``, with the reason."""
        stage = knobs.zero_stage or 0
        found: dict[str, str] = {}
        for name in knobs.settings():
            knob = self.knobs.get(name)
            if knob is None:
                continue  # an environment variable: nobody can tell
            if platform.backend in knob.inert:
                found[name] = knob.inert[platform.backend]
            elif stage not in knob.zero_stages:
                found[name] = f"ZeRO-{stage} does not read it"
        return found

    def with_defaults(self, knobs: Knobs, derived: Mapping[str, KnobValue]) -> Knobs:
        """The knobs that are set, then ``derived``, then the declared defaults, as one configuration."""
        defaults = {name: each.default for name, each in self.knobs.items() if each.default is not None}
        filled = {**defaults, **derived, **knobs.settings()}
        quiet = [name for name, each in self.knobs.items() if each.rare and filled.get(name) == each.default]
        return Knobs.model_validate({name: value for name, value in filled.items() if name not in quiet})
