"""Results as tables on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from pretune.collector.detect import Probed
from pretune.tuner.portability import Outcome, Portability

OUTSIDE = "~ lies outside of what was learned: physics with a wide interval"


def show_ranking(result: dict[str, Any], knobs: list[str]) -> None:
    """The predictions, best first."""
    table = Table(
        title=f"{result['workload']} on {result['platform']}: {result['candidates']} configurations",
        title_justify="left",
    )
    table.add_column("#")
    for name in ("tokens/s/device", "90 % interval", "chance to run"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("knobs", overflow="fold")
    for number, entry in enumerate(result["ranking"], 1):
        found, settings = entry["predicted"], entry["knobs"]
        table.add_row(
            str(number),
            f"{found['tokens_per_s_per_device']:,.0f}",
            f"{found['low']:,.0f} to {found['high']:,.0f}" + (" ~" if found["out_of_domain"] else ""),
            f"{found['chance_to_run']:.0%}",
            " ".join(f"{name}={settings[name]}" for name in knobs if name in settings),
        )
    Console().print(table)
    if any(entry["predicted"]["out_of_domain"] for entry in result["ranking"]):
        Console().print(OUTSIDE, highlight=False)


def show_fits(title: str, fits: list[dict[str, Any]]) -> None:
    """Surrogates with their errors on what was held out, and where their cards are."""
    table = Table(title=f"{title}: errors on configurations held out", title_justify="left")
    for name in ("platform", "trials", "held out", "median error", "in 90 % interval", "rank correlation"):
        table.add_column(name, justify="left" if name == "platform" else "right")
    for fit in fits:
        errors = fit["errors"] or {}
        shares = [errors.get(name) for name in ("median_absolute_relative_error", "coverage")]
        rank = errors.get("rank_correlation", float("nan"))
        table.add_row(
            fit["platform"],
            str(fit["trials"]),
            f"{errors.get('rows', 0):.0f}",
            *("" if share is None else f"{share:.1%}" for share in shares),
            f"{rank:.3f}" if rank == rank else "",
        )
    console = Console()
    console.print(table)
    for fit in fits:
        console.print(f"{fit['platform']}: {fit['card']}", highlight=False, soft_wrap=True)


def show_platform(probed: Probed, out: str) -> None:
    """What the devices and the links do, a row each, and where it is written."""
    platform, measured = probed.platform, probed.measured
    name = (
        f"{platform.name}: {platform.nodes} nodes of {platform.devices_per_node} devices, {platform.backend}"
    )
    console = Console()
    console.print(f"{name}, {platform.accelerator.name}", highlight=False)
    products = Table(title="products of square matrices, TFLOP/s", title_justify="left")
    products.add_column("precision")
    sizes = sorted({row["size"] for row in measured["products"]})
    for size in sizes:
        products.add_column(f"{size:,}", justify="right")
    rates = {(r["precision"], r["size"]): 2e-12 * r["size"] ** 3 / r["seconds"] for r in measured["products"]}
    for precision in dict.fromkeys(row["precision"] for row in measured["products"]):
        found = (rates.get((precision, size)) for size in sizes)
        products.add_row(precision, *("" if rate is None else f"{rate:,.3g}" for rate in found))
    console.print(products)
    copies = ", ".join(f"{kind.replace('_', ' ')} {r / 1e9:,.3g}" for kind, r in measured["copies"].items())
    console.print(f"copies, GB/s: {copies}", highlight=False)
    if probed.fits():
        console.print(_links(probed))
    console.print(f"\nplatform: {out}", highlight=False, soft_wrap=True)


def _links(probed: Probed) -> Table:
    table = Table(title="links: latency + bytes / bandwidth", title_justify="left")
    table.add_column("")
    for name in ("latency, us", "bandwidth on the wire, MB/s", "median error"):
        table.add_column(name, justify="right")
    for name, fit in probed.fits().items():
        latency, bandwidth, error = fit.latency_s, fit.bandwidth_bytes_per_s, fit.relative_error
        table.add_row(
            name.replace("_", " "),
            "" if latency is None else f"{latency * 1e6:,.0f}",
            "" if bandwidth is None else f"{bandwidth / 1e6:,.1f}",
            "" if error is None else f"{error:.0%}",
        )
    return table


def show_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Records as a table; columns that are empty, missing or zero everywhere are left out. On a narrow
    terminal words are folded, and figures stay whole."""
    table = Table(title=title, title_justify="left")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if any(row.get(name) for row in rows)]
    for name in columns:
        number = any(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in columns))
    Console().print(table)


def cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 100 else _whole(value)


def _whole(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) else str(value)


def show_communication(result: dict[str, Any]) -> None:
    """A table per configuration: its collectives, and below how much of the step they are."""
    console = Console()
    knobs = [each["knobs"] for each in result["configurations"]]
    for each in result["configurations"]:
        told = ", ".join(f"{name}={each['knobs'].get(name)}" for name in differing(knobs))
        step_s, exposed_s = each["step_s"], each["exposed_s"]
        share = f", {exposed_s / step_s:.0%} of a step of {step_s:.4g} s" if step_s else ""
        hidden = f"{exposed_s:.4g} s that nothing hides{share} (predicted)"
        table = Table(
            title=f"{each['name']}: {told or 'the same as the other'}",
            caption=f"{each['seconds']:.4g} s in all, {hidden}",
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("collective")
        for name in ("calls a step", "MB a message", "ms a message", "MB", "s"):
            table.add_column(name, justify="right")
        for sent in each["collectives"]:
            message = (
                sent["message_bytes"] / 1e6,
                sent["message_s"] * 1e3,
                sent["bytes"] / 1e6,
                sent["seconds"],
            )
            table.add_row(
                f"{sent['op']} ({sent['group']})",
                f"{sent['calls']:,}",
                *(f"{figure:,.4g}" for figure in message),
            )
        if not each["collectives"]:
            table.add_row("nothing is sent")
        console.print(table)


MANY = 6  # problems, each with a table of its own, that somebody reads


def show_portability(found: list[Portability], everything: bool) -> None:
    """A table per problem: policies with their efficiency on each platform and what it comes to. Of many
    problems one table, unless ``everything`` is asked for."""
    console = Console()
    if len(found) > MANY and not everything:
        console.print(_problems(found))
        console.print("--all has a table for each problem, with every platform and policy")
        return
    figures = ("harmonic mean", "95 %", "mean", "worst", "runs on", "MFU", "of the bound")
    for each in found:
        searched = zip(each.platforms, each.searched, strict=True)
        table = Table(
            title=f"{each.problem}: share of the best known",
            caption="best known of " + ", ".join(f"{n} configurations on {name}" for name, n in searched),
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("policy")
        for name in (*each.platforms, *figures):
            table.add_column(name, justify="right")
        for outcome in each.outcomes:
            table.add_row(*_policy(outcome))
        console.print(table)
        for note in dict.fromkeys(f"* {o.policy}: {o.note}" for o in each.outcomes if o.note):
            console.print(note, highlight=False)


def _problems(found: list[Portability]) -> Table:
    """A row per problem: the harmonic means of what stands for a way of tuning."""
    table = Table(
        title=f"{len(found)} problems: harmonic mean of the share of the best known", title_justify="left"
    )
    table.add_column("problem", overflow="fold")
    ways = [policy for policy in ("stock defaults", "best single configuration") if _has(found, policy)]
    own = next((o.policy for each in found for o in each.outcomes if o.policy.startswith("pretune")), None)
    for name in ("platforms", *ways, "tuned elsewhere: best", "worst", *([own] if own else []), "MFU, tuned"):
        table.add_column(name, justify="right")
    untold = 0
    for each in found:
        means = {o.policy: main.harmonic for o in each.outcomes if (main := o.scores["application"])}
        carried = [mean for name in each.platforms if (mean := means.get(f"tuned on {name}")) is not None]
        ends = (max(carried), min(carried)) if carried else (None, None)
        shown = [*(means.get(name) for name in ways), *ends, *([means.get(own)] if own else [])]
        if all(mean is None for mean in shown):
            untold += 1
            continue
        tuned = next(o.scores["architectural"] for o in each.outcomes if o.policy == "tuned on each")
        figures = (*shown, tuned.harmonic if tuned else None)
        table.add_row(each.problem, str(len(each.platforms)), *map(_share, figures))
    if untold:
        table.caption = f"of {untold} more, no configuration ran on all platforms"
        table.caption_justify = "left"
    return table


def _has(found: list[Portability], policy: str) -> bool:
    return any(outcome.policy == policy for each in found for outcome in each.outcomes)


def _policy(outcome: Outcome) -> list[str]:
    main, *others = (outcome.scores[kind] for kind in ("application", "architectural", "attainable"))
    beside = (main.arithmetic, main.worst, main.supported) if main else (None,) * 3
    return [
        outcome.policy + (" *" if outcome.note else ""),
        *(_share(value) for value in outcome.efficiencies["application"]),
        _share(main.harmonic if main else None),
        "{:.2f} to {:.2f}".format(*main.interval) if main and main.interval else "-",
        *(_share(value) for value in beside),
        *(_share(other.harmonic if other else None) for other in others),
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def differing(knobs: list[dict[str, Any]]) -> list[str]:
    """The names of the knobs that are not the same in all."""
    names = list(dict.fromkeys(name for each in knobs for name in each))
    return [name for name in names if len({str(each.get(name)) for each in knobs}) > 1]
