"""A trial: one (workload, platform, knobs) that was run, and what came of it."""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform, StatedPlatform
from pretune.datasets.script import Script
from pretune.datasets.spec import Spec
from pretune.datasets.stated import StatedWorkload
from pretune.datasets.workload import Workload
from pretune.errors import InputError


class Status(StrEnum):
    """How a trial ended. Anything but ``ok`` has a cause in words and no throughput."""

    OK = "ok"
    OOM = "oom"  # an allocator refused, or the kernel killed it for memory
    TIMEOUT = "timeout"  # it made no progress, or did not end within its limit
    CRASH = "crash"  # any other exception, signal or exit code
    DIVERGED = "diverged"  # the loss became NaN or infinite
    INVALID = "invalid"  # the framework or the trial program refuses the configuration
    INTERRUPTED = "interrupted"  # a host failed or was taken away: says nothing of the configuration


class Measure(Spec):
    """How long a trial measures. A window is one whole accumulation window (one optimizer step).

    ``checkpoint_steps``: after so many the trial program writes the state of the training, each time over
    the one before, between two steps; null: never.
    """

    min_warmup_windows: PositiveInt = 2
    max_warmup_windows: PositiveInt = 8
    min_windows: PositiveInt = 6
    max_windows: PositiveInt = 40
    max_seconds: PositiveFloat = 6.0
    timeout_s: PositiveFloat = 300.0
    checkpoint_steps: PositiveInt | None = None

    @model_validator(mode="after")
    def _least_before_most(self) -> Self:
        for kind in ("warmup_windows", "windows"):
            least, most = getattr(self, f"min_{kind}"), getattr(self, f"max_{kind}")
            if least > most:
                raise ValueError(f"min_{kind} {least} exceeds max_{kind} {most}; lower it or raise the other")
        return self

    @property
    def most_steps(self) -> int:
        """Optimizer steps with which every measurement comes to its end."""
        return self.max_warmup_windows + self.max_windows


class StatedTrial(Spec):
    """What was run, by pretune or by others, as far as its source states it."""

    trial_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    session_id: str | None = None
    purpose: Literal["search", "default", "control", "verify", "history", "imported", "diagnostic"] = "search"
    workload: StatedWorkload
    platform: StatedPlatform
    framework: str = "deepspeed"
    knobs: Knobs
    seed: NonNegativeInt = 0
    measure: Measure = Measure()
    script: Script = Script()


class TrialSpec(StatedTrial):
    """One trial to be run, whole: the immutable sheet that every rank reads."""

    workload: Workload
    platform: Platform


class Trial(StatedTrial):
    """A trial that ended. What pretune ran has a whole workload and platform; of what was imported, what its
    source does not state is None.

    ``tokens_per_s`` is the tokens of all measured windows over the wall-clock time from
    the end of the last warm-up window to the end of the last window; its standard error
    comes from batch means over ``window_times_s``. Memory is the largest rank's.
    ``warm`` says that the ranks were forked from a process that had its libraries imported.
    ``scheduler_job`` is what it ran in, by the scheduler's own name (``slurm:4711``).
    ``stopped_early``: its windows are fewer because it was clearly slower than another trial.
    A ``purpose`` of ``diagnostic``: something that slows it was read beside it; nobody learns from its speed.
    Open fields: ``counters`` (name -> rank 0's reading over the measured windows), ``missing``
    (counter provider -> why it gave nothing), ``software`` (component -> version).
    """

    created_at: datetime
    status: Status
    cause: str | None = None
    window_times_s: list[NonNegativeFloat] = Field(default_factory=list)
    warmup_windows: NonNegativeInt | None = None
    step_time_s: PositiveFloat | None = None
    tokens_per_s: PositiveFloat | None = None
    tokens_per_s_per_device: PositiveFloat | None = None
    tokens_per_s_std_error: NonNegativeFloat | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    peak_memory_allocated_bytes: NonNegativeInt | None = None
    peak_memory_reserved_bytes: NonNegativeInt | None = None
    peak_memory_device_bytes: NonNegativeInt | None = None
    startup_s: NonNegativeFloat | None = None
    compile_s: NonNegativeFloat | None = None
    data_wait_s: NonNegativeFloat | None = None
    wall_s: NonNegativeFloat | None = None
    hosts: list[str] = Field(default_factory=list)
    warm: bool | None = None
    scheduler_job: str | None = None
    stopped_early: bool | None = None
    source: str = "pretune"
    counters: dict[str, float | None] = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict)
    software: dict[str, str] = Field(default_factory=dict)

    @field_validator("workload", "platform", mode="before")
    @classmethod
    def _as_stated(cls, value: Any) -> Any:  # a trial and the same one read back are equal
        return value.model_dump() if isinstance(value, Workload | Platform) else value

    @model_validator(mode="after")
    def _status_and_figures_agree(self) -> Self:
        speed, each = self.tokens_per_s, self.tokens_per_s_per_device
        if self.ok and each is None:
            raise ValueError(
                "status ok needs tokens_per_s_per_device; give it, or the status that it failed with"
            )
        if not self.ok and not self.cause:
            raise ValueError(f"status {self.status} needs a cause in words; give it")
        if not self.ok and (speed or each):
            raise ValueError(f"status {self.status} has a throughput; leave it out, or the status is ok")
        devices = self.platform.devices
        if speed and each and not math.isclose(speed, each * devices, rel_tol=1e-3):
            raise ValueError(
                f"tokens_per_s {speed:g} is not tokens_per_s_per_device {each:g} x {devices} devices"
            )
        return self

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def spec(self) -> TrialSpec:
        """What to run again; raises :class:`InputError` naming what its source does not state."""
        fields = {name: getattr(self, name) for name in TrialSpec.model_fields}
        fields |= {name: fields[name].model_dump() for name in ("workload", "platform")}
        workload = fields["workload"]
        unknown = [f"model.{name}" for name, value in workload["model"].items() if value is None]
        unknown += [f"workload.{name}" for name, value in workload.items() if value is None]
        if unknown:
            raise InputError(
                f"trial {self.trial_id}: its source does not state {', '.join(unknown)}; "
                "write a job with the whole model to run it again"
            )
        return TrialSpec.from_mapping(fields, f"trial {self.trial_id}")
