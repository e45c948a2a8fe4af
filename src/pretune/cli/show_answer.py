"""The answer of a session on the terminal: what is best, by how much, why, and what else is worth a look."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from pretune.cli.show import cell, differing
from pretune.tuner.answer import Answer
from pretune.tuner.batches import SideBySide
from pretune.tuner.budget import in_words
from pretune.tuner.reasons import Reasons

WORTH_A_LOOK = 1.05  # memory left, as a share of what the fastest leaves


def show_answer(answer: Answer, page: str) -> None:
    """Winner and defaults beside each other, the ratios in words, and the files with what they hold.

    ``page``: the command that opens the tracking page.
    """
    console = Console()
    data = answer.asdict()
    measured = {role: data[role] for role in ("winner", "default", "careful") if data[role]}
    if measured:
        table = Table(title=f"{data['workload']} on {data['platform']}", title_justify="left")
        table.add_column("")
        for role in measured:
            table.add_column(role, justify="right")
        table.add_row("tokens/s/device", *(_speed(each) for each in measured.values()), style="bold")
        table.add_row("runs", *(str(each["trials"]) for each in measured.values()))
        for name in differing([each["knobs"] for each in measured.values()]):
            table.add_row(name, *(str(each["knobs"].get(name, "")) for each in measured.values()))
        console.print(table)
    for line in answer.sentences():
        console.print(line, highlight=False)
    if answer.reasons:
        _show_reasons(console, answer.reasons)
    if data["careful"]:
        cost = "finding that micro batch took {cost_trials} trials, {cost_s:.0f} s".format(**data["careful"])
        console.print(cost, highlight=False)
    console.print(f"spent: {in_words(data['spent'])}", highlight=False)
    console.print(f"\ntrials: {data['store']} (Parquet)", highlight=False)
    for name, path in data["files"].items():
        console.print(f"{name}: {path}", highlight=False)
    if data["mlflow_run_id"]:
        console.print(f"MLflow run {data['mlflow_run_id']}: {page}", highlight=False)


def show_side_by_side(found: SideBySide, page: str) -> None:
    """Each global batch's answer, then what was found at each as a column."""
    for answer in found.answers:
        show_answer(answer, page)
    console = Console()
    batches = found.asdict()["batches"]
    table = Table(title="side by side, not ranked: another global batch is another training run")
    table.add_column("global batch, tokens")
    for each in batches:
        table.add_column(f"{each['global_batch_tokens']:,}", justify="right")
    best = [each["best"] for each in batches]
    table.add_row("tokens/s/device", *(_speed(each) if each else "nothing ran" for each in best))
    ratios = [each["speedup"] and each["speedup"]["default"] for each in batches]
    table.add_row("of the stock defaults", *(_ratio(each) for each in ratios))
    for name in differing([each["knobs"] for each in best if each]):
        table.add_row(name, *(str(each["knobs"].get(name, "")) if each else "" for each in best))
    console.print(table)


def _times(share: float | None) -> str:
    return "" if share is None else "failed" if share == 0 else f"{share:.2f}x"


def _ratio(found: dict[str, Any] | None) -> str:
    return "" if found is None or found["ratio"] is None else f"{found['ratio']:.2f}x"


def _show_reasons(console: Console, found: Reasons) -> None:
    """What changing one knob alone costs, and what else may be chosen."""
    table = Table(title="one knob changed, all else as in the files", title_justify="left")
    for name in ("knob", "there", "instead", "predicted", "measured"):
        table.add_column(name, justify="left" if name in ("knob", "there", "instead") else "right")
    for why in found.why:
        told = [other for other in why.alternatives if (other.predicted, other.measured) != (None, None)]
        for number, other in enumerate(told):
            head = (why.knob, cell(why.value)) if number == 0 else ("", "")
            table.add_row(*head, cell(other.value), _times(other.predicted), _times(other.measured))
    if table.row_count:
        console.print(table)
    if found.default_place:
        console.print("the default is predicted {} of {} configurations".format(*found.default_place))
    rest = [point for point in found.pareto if point.headroom_bytes is not None]
    for point in rest[1:]:
        assert point.headroom_bytes is not None
        if point.headroom_bytes < WORTH_A_LOOK * (rest[0].headroom_bytes or 0.0):
            continue
        names = differing([rest[0].knobs, point.knobs])
        apart = ", ".join(f"{name}={point.knobs.get(name)}" for name in names)
        joules = "" if point.joules_per_token is None else f", {point.joules_per_token:.3g} J/token"
        console.print(
            f"also worth a look: {apart}: {point.tokens_per_s_per_device:,.0f} tokens/s per device, "
            f"{point.headroom_bytes / 2**30:.2f} GiB left{joules}",
            highlight=False,
        )


def _speed(measured: dict[str, Any]) -> str:
    if measured["tokens_per_s_per_device"] is None:
        return "failed"
    spread = f" ± {measured['spread']:,.0f}" if measured["spread"] is not None else ""
    return f"{measured['tokens_per_s_per_device']:,.0f}{spread}"
