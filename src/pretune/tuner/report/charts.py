"""The plots of a report, each drawn from the first table of its section; needs altair (Vega-Lite).

Nothing is told by colour alone: symbols, dashes or the order of parts say the same, so that a page
printed in black and white can be read. Colours are those of Okabe and Ito (2008, Color Universal Design).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pretune.tuner.report.resources import LEFT, PARTS
from pretune.tuner.tables import Section, Table

if TYPE_CHECKING:
    import altair as alt

Drawn = Any  # altair's classes of charts have no useful common type

ROWS, HEIGHT = "rows", 300
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
SHAPES = ("circle", "cross", "triangle-up", "square", "diamond", "triangle-down", "triangle-right", "stroke")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [10, 4], [1, 3], [6, 2, 1, 2, 1, 2])
LIGHTER = ("#2b2a4c", "#2f6690", "#3aa6a0", "#8fce7a", "#e9e29c", "#d9d9d9")  # told apart as greys, too
SPEED = "tokens/s per device"


def chart(section: Section) -> dict[str, Any] | None:
    """The section's Vega-Lite specification with its data; None where it has no plot, or nothing to draw.

    ``usermeta.rows`` says how many rows it draws.
    """
    draw = CHARTS.get(section.key)
    if draw is None or not section.tables or not section.tables[0].rows:
        return None
    table = section.tables[0]
    drawn = _one_problem_at_a_time(draw(table), table)
    whole = drawn.properties(width="container", height=HEIGHT).configure_view(stroke=None)
    specification: dict[str, Any] = whole.to_dict()
    specification["datasets"] = {ROWS: table.records()}
    specification["autosize"] = {"type": "fit-x", "contains": "padding"}
    specification["usermeta"] = {"rows": len(table.rows)}
    return specification


def over_time(table: Table) -> Drawn:
    """Measured throughput by trial, best so far as steps, predictions as bars; what failed at the bottom."""
    import altair as alt

    base = _base()
    x = alt.X(
        "number:Q",
        title="trial",
        scale=alt.Scale(zero=False, padding=15),
        axis=alt.Axis(tickMinStep=1, format="d"),
    )
    y = alt.Y(f"{SPEED}:Q", title=SPEED, scale=alt.Scale(zero=True))
    status = _kinds(table, "status")
    shown = alt.selection_point(fields=["status"], bind="legend")
    points = base.mark_point(filled=True, size=60).encode(
        x,
        y,
        **status,
        tooltip=_tips(table),
        opacity=alt.condition(shown, alt.value(0.9), alt.value(0.1)),
    )
    layers, statuses = [], _values(table, "status")
    if "ok" in statuses:
        layers.append(points.transform_filter(f"isValid(datum['{SPEED}'])"))
    if statuses != ["ok"]:
        failed = points.transform_filter(f"!isValid(datum['{SPEED}'])")
        layers.append(failed.encode(y=alt.value(HEIGHT - 10)))
    if "best so far" in table.columns:
        layers.append(
            base.mark_line(interpolate="step-after", strokeDash=[4, 2], color="black").encode(
                x, alt.Y("best so far:Q", title=SPEED)
            )
        )
    if "predicted" in table.columns:
        bars = base.mark_rule(color="#777777").encode(
            x, alt.Y("predicted low:Q", title=SPEED), alt.Y2("predicted high:Q")
        )
        layers[:0] = [
            bars,
            base.mark_tick(color="#777777", width=9).encode(x, alt.Y("predicted:Q", title=SPEED)),
        ]
    return alt.layer(*layers).add_params(shown)


def parity(table: Table) -> Drawn:
    """Predicted over measured throughput on logarithmic axes; on the line both are the same."""
    import altair as alt

    base = _base()
    log = alt.Scale(type="log", nice=False, padding=15)
    x = alt.X("measured:Q", scale=log, title=f"measured, {SPEED}")
    y = alt.Y("predicted:Q", scale=log, title=f"predicted, {SPEED}")
    kinds = _kinds(table, "platform" if len(_values(table, "platform")) > 1 else "interval")
    line = base.mark_line(color="black", strokeDash=[4, 2]).encode(
        x, alt.Y("measured:Q", scale=log, title=f"predicted, {SPEED}")
    )
    bars = base.mark_rule(color="#999999").encode(
        x, alt.Y("low:Q", scale=log, title=f"predicted, {SPEED}"), alt.Y2("high:Q")
    )
    points = base.mark_point(filled=True, size=60).encode(x, y, **kinds, tooltip=_tips(table))
    return alt.layer(bars, line, points)


def memory(table: Table) -> Drawn:
    """Peak memory by throughput under the line of what the device has; what ran out of it at the left."""
    import altair as alt

    base = _base().transform_calculate(
        peak="isValid(datum['measured GiB']) ? datum['measured GiB'] : datum['by formula GiB']",
        speed=f"isValid(datum['{SPEED}']) ? datum['{SPEED}'] : 0",
    )
    x = alt.X("speed:Q", title=f"{SPEED} (0: failed)")
    points = base.mark_point(filled=True, size=60).encode(
        x,
        alt.Y("peak:Q", title="GiB per device", scale=_memory_scale(table)),
        **_kinds(table, "status"),
        tooltip=_tips(table),
    )
    if "device GiB" not in table.columns:
        return alt.layer(points)
    rule = base.mark_rule(strokeDash=[6, 3]).encode(alt.Y("max(device GiB):Q"), detail="device GiB:N")
    return alt.layer(rule, points)


def effects(table: Table) -> Drawn:
    """Ratios with their intervals on a logarithmic axis; right of the line is faster."""
    import altair as alt

    base = _base().transform_calculate(what="datum.knob + ': ' + datum.change")
    log = alt.Scale(type="log", nice=False, padding=15)
    y = alt.Y("what:N", sort=None, title=None, axis=_labels())
    points = base.mark_point(filled=True, shape="diamond", size=90, color=COLOURS[0]).encode(
        alt.X("throughput ratio:Q", scale=log, title="throughput ratio"), y, tooltip=_tips(table)
    )
    bars = base.mark_rule().encode(alt.X("low:Q", scale=log), alt.X2("high:Q"), y)
    same = base.mark_rule(strokeDash=[4, 2]).encode(x=alt.datum(1))
    return alt.layer(same, bars, points)


def steps(table: Table) -> Drawn:
    """Stacked bars, the parts in the legend's order, darkest first."""
    import altair as alt

    parts = [name for name in table.columns if name in (*PARTS, LEFT)]
    base = (
        _base()
        .transform_fold([*parts], ["part", "ms"])
        .transform_calculate(place=f"indexof({parts!r}, datum.part)")
    )
    colours = alt.Scale(domain=parts, range=list(LIGHTER[: len(parts)]))
    bars = base.mark_bar(stroke="white", strokeWidth=1).encode(
        alt.X("ms:Q", title="ms of a step"),
        alt.Y("configuration:N", sort=None, title=None, axis=_labels()),
        color=alt.Color("part:N", scale=colours, legend=_legend(2)),
        order=alt.Order("place:Q"),
        tooltip=[alt.Tooltip("part:N"), alt.Tooltip("ms:Q"), *_tips(table)],
    )
    return alt.layer(bars)


def cascade(table: Table) -> Drawn:
    """The harmonic mean so far as lines, each platform's own efficiency as small symbols."""
    import altair as alt

    names = _values(table, "policy")
    base = _base()
    x = alt.X("platforms:O", title="platforms, the policy's best first", axis=alt.Axis(labelAngle=0))
    kinds = _kinds(table, "policy")
    dashes = alt.StrokeDash(
        "policy:N", scale=alt.Scale(domain=names, range=list(DASHES[: len(names)])), legend=_legend(1)
    )
    lines = base.mark_line(point=False).encode(
        x,
        alt.Y("harmonic mean so far:Q", title="efficiency", scale=alt.Scale(domain=[0, 1])),
        kinds["color"],
        dashes,
    )
    ends = base.mark_point(filled=True, size=50).encode(
        x, alt.Y("harmonic mean so far:Q", title="efficiency"), **kinds
    )
    each = base.mark_point(size=25, opacity=0.6).encode(
        x, alt.Y("efficiency:Q", title="efficiency"), **kinds, tooltip=_tips(table)
    )
    return alt.layer(lines, each, ends)


CHARTS: dict[str, Callable[[Table], Any]] = {
    "trials": over_time,
    "parity": parity,
    "memory": memory,
    "effects": effects,
    "steps": steps,
    "cascade": cascade,
}


def _base() -> alt.Chart:
    import altair as alt

    return alt.Chart(alt.NamedData(name=ROWS))


def _one_problem_at_a_time(drawn: Any, table: Table) -> Any:
    """Figures of several problems do not compare: a list beside the plot chooses one."""
    import altair as alt

    if "problem" not in table.columns:
        return drawn
    names = _values(table, "problem")
    chosen = alt.param(
        name="problem", value=names[0], bind=alt.binding_select(options=names, name="workload and platform ")
    )
    return drawn.add_params(chosen).transform_filter("datum.problem === problem")


def _kinds(table: Table, name: str) -> dict[str, Any]:
    """Colour and symbol of each value of a column, one legend for both."""
    import altair as alt

    values = _values(table, name)
    colours = alt.Scale(domain=values, range=_cycled(COLOURS, len(values)))
    shapes = alt.Scale(domain=values, range=_cycled(SHAPES, len(values)))
    legend = _legend(1 if name == "policy" else 3)
    return {
        "color": alt.Color(f"{name}:N", scale=colours, legend=legend),
        "shape": alt.Shape(f"{name}:N", scale=shapes, legend=legend),
    }


def _tips(table: Table) -> list[alt.Tooltip]:
    import altair as alt

    numeric = (table.numeric(number) for number in range(len(table.columns)))
    return [
        alt.Tooltip(field=name, type="quantitative" if number else "nominal")
        for name, number in zip(table.columns, numeric, strict=True)
    ]


def _labels() -> alt.Axis:
    """Names of rows; on a telephone they leave room for the plot."""
    import altair as alt

    return alt.Axis(labelLimit=alt.expr("width < 400 ? 110 : 300"), labelPadding=8)


def _legend(columns: int) -> alt.Legend:
    import altair as alt

    return alt.Legend(orient="bottom", columns=columns, title=None, labelLimit=300)


def _memory_scale(table: Table) -> alt.Scale:
    """Logarithmic where peaks are so far below the device's memory that they would lie on the axis."""
    import altair as alt

    rows = table.records()
    peak = max((float(r.get("measured GiB") or 0.0) for r in rows), default=0.0)
    room = max((float(r.get("device GiB") or 0.0) for r in rows), default=0.0)
    return alt.Scale(type="log") if 0 < peak < 0.2 * room else alt.Scale(zero=True)


def _values(table: Table, name: str) -> list[str]:
    at = table.columns.index(name)
    found = dict.fromkeys(str(row[at]) for row in table.rows)
    return sorted(found, key=lambda value: value not in ("ok", "inside"))  # what went well comes first


def _cycled(values: Sequence[str], count: int) -> list[str]:
    return [values[i % len(values)] for i in range(count)]
