"""Where memory and time go: the measured peak against the device, and the parts of a step."""

from __future__ import annotations

import math

from pretune.datasets.trial import Trial
from pretune.model.need import PEAKS
from pretune.model.physics import TransformerPhysics
from pretune.tuner.report.gathered import COMPARING, Gathered, counted, naming
from pretune.tuner.tables import Cell, Section, Table
from pretune.tuner.tuner import fastest

GIB = 2**30
_BRIEF = ("problem", "status", "measured GiB", "by formula GiB", "device GiB", "headroom, %", "knobs")
MOST_BARS, MOST_BARS_EACH = 8, 3  # of one problem, and of each of several
LEFT = "not explained"
# what a reader asks of a step -> the shares of the physics that it adds up
PARTS = {
    "compute": ("products", "attention"),
    "memory traffic": ("memory_traffic", "optimizer"),
    "exposed communication": ("tensor_parallel", "data_parallel", "pipeline_parallel", "latency"),
    "bubble": ("bubble",),
    "launches and overhead": ("launch",),
}


def memory(gathered: Gathered) -> Section:
    """Peaks as measured; beside them what formulas say, which stands alone where memory ran out."""
    predicted = TransformerPhysics().memory_bytes(gathered.frame)
    records: list[dict[str, Cell]] = []
    at = {trial.trial_id: i for i, trial in enumerate(gathered.trials)}
    for name, trials in gathered.problems.items():
        knobs = naming(trials)
        for trial in trials:
            told = float(predicted[at[trial.trial_id]])
            row = _memory_row(trial, told) | {"knobs": knobs(trial), "trial": trial.trial_id}
            records.append(gathered.named(name) | row)
    used = [r for r in records if r["measured GiB"] is not None or r["status"] == "oom"]
    if not used:
        return Section("memory", "Memory", ["no trial measured its memory"])
    words = _headroom(gathered, used)
    return Section("memory", "Memory", words, [Table.of(used, brief=_BRIEF)])


def _memory_row(trial: Trial, told: float) -> dict[str, Cell]:
    peaks = [getattr(trial, name) for name in PEAKS]
    peak = next((value for value in peaks if value), None)
    room = trial.platform.accelerator.memory_bytes
    return {
        "status": str(trial.status),
        "tokens/s per device": trial.tokens_per_s_per_device,
        "measured GiB": peak / GIB if peak else None,
        "by formula GiB": told / GIB if math.isfinite(told) else None,
        "device GiB": room / GIB if room else None,
        "headroom, %": 100 * (1 - peak / room) if peak and room else None,
    }


def _headroom(gathered: Gathered, records: list[dict[str, Cell]]) -> list[str]:
    out = sum(record["status"] == "oom" for record in records)
    words = [f"{counted(out, 'trial')} ran out of memory"] if out else ["no trial ran out of memory"]
    if not gathered.session:
        return words
    best = fastest([trial for trial in gathered.trials if trial.purpose not in COMPARING])
    row = next((r for r in records if best and r["trial"] == best.trial_id), None)
    if row and row.get("headroom, %") is not None:
        words.append(
            f"the fastest trial used {row['measured GiB']:.2f} of {row['device GiB']:.2f} GiB: "
            f"{row['headroom, %']:.0f} % is left"
        )
    return words


def step_time(gathered: Gathered) -> Section:
    """The physics' shares of a step, with its constants found from these very trials, in measured seconds.

    What it does not explain of the measured time (or explains too much) stands beside the parts.
    """
    title = "Where a step's time goes"
    chosen = [
        (name, *each) for name, trials in gathered.problems.items() for each in _fastest(gathered, trials)
    ]
    if not chosen:
        return Section("steps", title, ["no trial ran"])
    physics = TransformerPhysics().calibrated(gathered.frame)
    at = {trial.trial_id: i for i, trial in enumerate(gathered.trials)}
    features = physics.features(gathered.frame[[at[trial.trial_id] for _, _, trial in chosen]])
    records = [
        gathered.named(name) | {"configuration": label} | parts
        for (name, label, trial), told in zip(chosen, features.to_dicts(), strict=True)
        if (parts := _parts(trial, told))
    ]
    if not records:
        need = "the platform's peak FLOP/s is not known; pretune probe measures it"
        return Section("steps", title, [need])
    words = [
        "parts of a step by the physical model, its constants found from these trials: an estimate, no trace",
        f"'{LEFT}' is the measured time less their sum, below zero where the model expects more",
    ]
    return Section("steps", title, words, [Table.of(records)])


def _fastest(gathered: Gathered, trials: list[Trial]) -> list[tuple[str, Trial]]:
    """The fastest run of each of the best configurations, with its place and the knobs that vary."""
    ran: dict[str, Trial] = {}
    for trial in sorted(trials, key=lambda each: -(each.tokens_per_s_per_device or 0.0)):
        if trial.ok and trial.step_time_s:
            ran.setdefault(str(sorted(trial.knobs.settings().items())), trial)
    most = MOST_BARS if len(gathered.problems) == 1 else MOST_BARS_EACH
    knobs = naming(trials)
    return [(f"{n}. {knobs(t)}", t) for n, t in enumerate([*ran.values()][:most], 1)]


def _parts(trial: Trial, told: dict[str, float | None]) -> dict[str, Cell]:
    """Milliseconds by part; empty where the physics does not know what the device can do."""
    whole = told["physics.log_step_time_s"]
    if whole is None:
        return {}
    parts = {
        part: 1e3 * math.exp(whole) * sum(told[f"physics.{name}_share_of_step"] or 0.0 for name in names)
        for part, names in PARTS.items()
    }
    assert trial.step_time_s
    measured = 1e3 * trial.step_time_s
    return {"measured ms": measured, **parts, LEFT: measured - sum(parts.values())}
