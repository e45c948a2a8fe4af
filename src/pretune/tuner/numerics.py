"""Does it still learn? A configuration that changes what is computed is checked by its loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.trial import Measure, Status, Trial
from pretune.tuner.verify import digest, speed

STEPS = 20
LEAST_SHARE = 0.9  # of what the reference learned in as many steps
CHECKED = Measure(
    min_warmup_windows=1,
    max_warmup_windows=1,
    min_windows=STEPS - 1,
    max_windows=STEPS - 1,
    max_seconds=86_400.0,  # the steps end it, or the time-out
)

RunFor = Callable[[str, Measure, Knobs], Trial | None]  # suffix of the trial's id, how long, knobs
Changes = dict[str, KnobValue | None]


@dataclass(frozen=True)
class LossCheck:
    """A fixed-seed run of ``changes`` beside one of the reference, the default configuration.

    ``share``: how far the loss fell within ``steps`` optimizer steps, over how far the reference's did. None
    where that cannot be told, and ``why``.
    """

    changes: Changes
    steps: int
    trial_id: str | None = None
    reference_id: str | None = None
    loss: float | None = None
    reference_loss: float | None = None
    share: float | None = None
    why: str | None = None

    @property
    def learns(self) -> bool | None:
        """None: not known."""
        return None if self.share is None else self.share >= LEAST_SHARE

    def asdict(self) -> dict[str, Any]:
        return asdict(self) | {"learns": self.learns}

    def sentence(self) -> str:
        what = ", ".join(f"{name}={value}" for name, value in self.changes.items())
        if self.share is None:
            return f"numerics: what {what} does to the loss was not checked: {self.why}"
        if self.loss is None:
            return f"numerics: with {what} the loss diverged: it is not used"
        found = (
            f"numerics: with {what} the loss is {self.loss:.4g} after {self.steps} steps, "
            f"{self.reference_loss:.4g} without: {self.share:.2f} of what the reference learned"
        )
        return found if self.learns else f"{found}; below {LEAST_SHARE}, it is not used"


def changes(framework: str, knobs: Knobs, default: Knobs) -> Changes:
    """The settings that compute something else than ``default`` does."""
    declared = find_framework(framework).knobs
    ours, theirs = knobs.settings(), default.settings()
    names = [name for name in ours | theirs if name in declared and declared[name].numerics]
    return {name: ours.get(name) for name in sorted(names) if ours.get(name) != theirs.get(name)}


def fastest_that_learns(
    searched: Iterable[Trial], default: Knobs, framework: str, run: RunFor
) -> tuple[Knobs | None, list[LossCheck]]:
    """The fastest configuration that computes what ``default`` does, or was seen to learn as it does.

    What could not be checked is used: who allows other numerics has the last word. ``default`` where nothing
    that ran learns, None where nothing ran.
    """
    checks: dict[str, LossCheck] = {}
    ran = [trial for trial in searched if trial.ok and trial.tokens_per_s_per_device]
    for trial in sorted(ran, key=speed, reverse=True):
        changed = changes(framework, trial.knobs, default)
        if not changed:
            return trial.knobs, list(checks.values())
        name = json.dumps(changed, sort_keys=True)
        if name not in checks:
            checks[name] = _checked(changed, trial.knobs, default, run)
        if checks[name].learns is not False:
            return trial.knobs, list(checks.values())
    return (default if ran else None), list(checks.values())


def _checked(changed: Changes, knobs: Knobs, default: Knobs, run: RunFor) -> LossCheck:
    reference, trial = (run(f"loss-{digest([each])}", CHECKED, each) for each in (default, knobs))
    check = LossCheck(changed, steps=STEPS)
    if trial is None or reference is None:
        return replace(check, why="the time was over")
    check = replace(
        check,
        trial_id=trial.trial_id,
        reference_id=reference.trial_id,
        loss=trial.loss_last,
        reference_loss=reference.loss_last,
    )
    if trial.status is Status.DIVERGED:
        return replace(check, loss=None, share=0.0)
    why = _incomparable(trial, reference)
    return replace(check, why=why) if why else replace(check, share=_share(trial, reference))


def _share(trial: Trial, reference: Trial) -> float:
    assert reference.loss_first is not None
    assert reference.loss_last is not None
    assert trial.loss_last is not None
    return (reference.loss_first - trial.loss_last) / (reference.loss_first - reference.loss_last)


def _incomparable(trial: Trial, reference: Trial) -> str | None:
    for name, each in {"reference": reference, "run": trial}.items():
        if not each.ok:
            return f"the {name} ended with {each.status}"
    if reference.loss_first is None or reference.loss_last is None or trial.loss_last is None:
        return "the runs told no loss"
    if _steps(trial) != _steps(reference):
        return f"the runs took {_steps(trial)} and {_steps(reference)} steps; end them by {{steps}}"
    if reference.loss_first <= reference.loss_last:
        return f"the reference learned nothing in {STEPS} steps"
    return None


def _steps(trial: Trial) -> int:
    return len(trial.window_times_s) + (trial.warmup_windows or 0)
