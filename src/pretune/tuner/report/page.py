"""A report as one HTML file that needs no network: sections, plots and the library that draws them."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pretune
from pretune.datasets.durable import whole_file
from pretune.errors import InputError
from pretune.tuner.report import Report

NEEDS = ("altair", "jinja2", "vl_convert")
MOST_SVG_ROWS = 500  # above, a plot is drawn on a canvas: it stays quick


def can_draw() -> bool:
    """Whether the ``report`` extra is installed."""
    return all(find_spec(name) for name in NEEDS)


def page(report: Report) -> str:
    """The whole page. Raises :class:`InputError` where the ``report`` extra is not installed."""
    if not can_draw():
        raise InputError("report: plots need an extra; pip install 'pretune[report]', or take --text")
    import vl_convert
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from pretune.tuner.report.charts import chart

    environment = Environment(
        loader=PackageLoader("pretune.tuner.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        report=report,
        charts={section.key: found for section in report.sections if (found := chart(section))},
        library=vl_convert.javascript_bundle(vl_version=vega_lite_version()),  # type: ignore[call-arg]
        most_svg_rows=MOST_SVG_ROWS,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=pretune.__version__,
    )


def vega_lite_version() -> str:
    """The version that altair writes, as vl-convert names it: ``6.4``."""
    import altair

    return ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def write_page(report: Report, path: Path) -> None:
    """:func:`page`, whole or not at all. Raises :class:`OSError` too."""
    text = page(report)
    with whole_file(path) as file:
        file.write(text.encode())
