"""Insights as tables on the terminal: what was measured and what is predicted, never in one table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from pretune.datasets.knobs import KnobValue
from pretune.tuner.explain import Insight


def show_insights(found: list[Insight]) -> None:
    """What the defaults cost, then each platform's knobs by pairs of trials, then what pairs do not tell."""
    console = Console()
    console.print(_defaults(found))
    for each in found:
        title = f"{each.problem} on {each.platform}"
        told = [
            effect for effect in each.effects if effect.ratio is not None or effect.breaks or effect.mends
        ]
        if told:
            table = _table(
                f"{title}: measured, pairs that differ in one knob", "pairs", "95 %", "fails in", "depends on"
            )
            for effect in told:
                by = ", ".join(
                    f"{value}: {_ratio(ratio)}" for value, ratio in (effect.ratios_by or {}).items()
                )
                depends = f"{effect.depends_on} ({by})" if effect.depends_on else ""
                fails = (
                    f"{effect.breaks} more"
                    if effect.breaks
                    else f"{effect.mends} fewer"
                    if effect.mends
                    else ""
                )
                table.add_row(
                    effect.knob,
                    f"{_value(effect.reference)} to {_value(effect.value)}",
                    _ratio(effect.ratio),
                    str(effect.pairs),
                    _range(effect.low, effect.high),
                    fails,
                    depends,
                )
            console.print(table)
        if each.predicted:
            table = _table(f"{title}: predicted, too few pairs", "configurations", "nine tenths within")
            for guess in each.predicted:
                change = f"{_value(guess.reference)} to {_value(guess.value)}"
                counted = str(guess.configurations)
                row = (guess.knob, change, _ratio(guess.ratio), counted, _range(guess.low, guess.high))
                table.add_row(*row)
            console.print(table)
        if not told and not each.predicted:
            console.print(f"{title}: {each.trials} trials are not enough data")


def _defaults(found: list[Insight]) -> Table:
    table = Table(title="What the defaults cost", title_justify="left")
    left = ("workload", "platform", "the best known has", "helps alone")
    for name in ("workload", "platform", "trials", "of the best", *left[2:]):
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for each in found:
        helps = [f"{knob} {_value(value)}: {_ratio(ratio)}" for knob, value, ratio in each.alone if ratio > 1]
        share = "not run" if each.default_share is None else f"{each.default_share:.0%}"
        best = [f"{knob} {_value(value)}" for knob, value in (each.best or {}).items()]
        shown = (", ".join(best) or "the defaults", ", ".join(helps[:3]) or "-")
        table.add_row(each.problem, each.platform, str(each.trials), share, *shown)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("knob", "change", "throughput", *columns):
        table.add_column(name, justify="left" if name in ("knob", "change", "depends on") else "right")
    return table


def _value(value: KnobValue | None) -> str:
    return "unset" if value is None else str(value)


def _ratio(value: Any) -> str:
    return "not enough data" if value is None else f"x {value:.2f}"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"
