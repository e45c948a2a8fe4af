"""What a fitted surrogate must not be used for, read from what it learned and how well it did."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from pretune.model.base import INTERVAL, Array
from pretune.model.columns import device_counts, numbers, ran, rows, text, words
from pretune.model.evaluation import scores
from pretune.model.features import FAR
from pretune.model.need import PEAKS
from pretune.model.physics.memory import rank_parameters
from pretune.model.physics.setup import read_setup
from pretune.model.surrogate import BoostedTrees

FEW = 30  # held-out trials, below which a share or a rank correlation is hardly more than an anecdote
SLACK = 0.1  # coverage may lie below the interval's by chance
RANKS = 0.7  # a rank correlation below which the order of two configurations is a guess
WORSE = 2.0  # times the overall median error, at which a workload or a scale is named


def limits(fitted: BoostedTrees, trials: pl.DataFrame, held_out: pl.DataFrame) -> list[str]:
    """One sentence per use that the data do not support; ``held_out`` as from :func:`cross_validate`."""
    good = rows(trials, ran(trials))
    return [*_elsewhere(fitted, good), *_knobs(fitted), *_failures(trials), *_accuracy(held_out)]


def _elsewhere(fitted: BoostedTrees, good: pl.DataFrame) -> list[str]:
    """Hardware, sizes and software that no trial was of."""
    found = [
        f"Any {what} other than {', '.join(seen)}: no trial was of one."
        for what, seen in (
            ("accelerator", _seen(text(good, "accelerator.name"))),
            ("number of devices", _seen(device_counts(good))),
            ("precision", _seen(text(good, "workload.precision"))),
            ("software stack", software_stacks(good)),
        )
        if 0 < len(seen) <= 3
    ]
    sizes = model_parameters(good)
    sizes = sizes[np.isfinite(sizes)]
    if len(sizes):
        low, high = sizes.min(), sizes.max()
        found.append(
            f"Models larger than {_count(FAR * high)} or smaller than {_count(low / FAR)} parameters: "
            f"{FAR:g} times beyond the {_span(low, high)} that were trained."
        )
    blind = int((~np.isfinite(fitted.baseline_.log_throughput(good))).sum())
    if blind:
        found.append(
            f"Extrapolating from trials whose model is not stated: physics cannot speak of {blind} of "
            f"the {len(good)} that ran."
        )
    return found


def _knobs(fitted: BoostedTrees) -> list[str]:
    encoder = fitted.encoder_
    knobs = [name for name in (*encoder.ranges_, *encoder.words_) if name.startswith("knob.")]
    fixed = sorted(set(knobs) - {*encoder.numeric_, *encoder.one_hot_})
    found = [f"Choosing {_listed(fixed)}: never varied."] if fixed else []
    return [*found, "Choosing any knob that its domain does not list: no trial stated one."]


def _failures(trials: pl.DataFrame) -> list[str]:
    found = []
    if (words(trials, "status", "ok") == "ok").all():
        found.append("Telling what will fail: no trial did, and its chance to run is that of the physics.")
    if not any(np.isfinite(numbers(trials, name)).any() for name in PEAKS):
        found.append("Telling how much memory is left: no trial measured its peak.")
    return found


def _accuracy(held_out: pl.DataFrame) -> list[str]:
    if len(held_out) < FEW:
        return [f"Deciding by its errors: only {len(held_out)} trials could be held out."]
    overall = scores(held_out)
    error = overall["median_absolute_relative_error"]
    found = [f"Deciding between configurations whose predictions lie within {error:.1%}: it errs by as much."]
    if overall["coverage"] < INTERVAL - SLACK:
        share = f"{overall['coverage']:.0%} of held-out trials lay within"
        found.append(f"Trusting its {INTERVAL:.0%} intervals: {share}.")
    if not overall["rank_correlation"] >= RANKS:
        found.append(f"Ranking: its rank correlation is {overall['rank_correlation']:.2f}.")
    for kind in ("workload", "devices"):
        for (name,), part in held_out.group_by(kind, maintain_order=True):
            error = scores(part)["median_absolute_relative_error"]
            if error > WORSE * overall["median_absolute_relative_error"] and len(part) < len(held_out):
                found.append(f"Close decisions with {kind} {name}: it errs there by {error:.1%}.")
    return found


def software_stacks(trials: pl.DataFrame) -> list[str]:
    """Each set of versions that trials ran with, once."""
    names = sorted(name for name in trials.columns if name.startswith("software."))
    stacks = {
        ", ".join(f"{k.removeprefix('software.')} {v}" for k, v in row.items() if v is not None)
        for row in trials.select(names).unique().to_dicts()
    }
    return sorted(stacks - {""})


def model_parameters(frame: pl.DataFrame) -> Array:
    """(n,) weights of the whole model; NaN where its shape is not stated."""
    one = np.ones(len(frame))
    return rank_parameters(dataclasses.replace(read_setup(frame), tp=one, pp=one, ep=one))


def _seen(values: pl.Series) -> list[str]:
    return sorted(set(values) - {"", "?"})


def _listed(names: list[str]) -> str:
    return ", ".join(name.removeprefix("knob.") for name in names)


def _span(low: float, high: float) -> str:
    return _count(low) if _count(low) == _count(high) else f"{_count(low)} to {_count(high)}"


def _count(value: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
