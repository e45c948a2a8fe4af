"""The report and its plots as files in a session's folder, for the tracking page to show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pretune.tuner.report import report
from pretune.tuner.report.page import can_draw, write_page

WIDTH = 760  # of a plot, in pixels


def report_files(folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Write ``report.html`` and ``plots/`` of the session in ``folder``; none without the ``report`` extra.

    A session must not fail for its picture: what goes wrong here is told to ``note``.
    """
    if not can_draw():
        return []
    try:
        found = report(str(folder))
        write_page(found, folder / "report.html")
        from pretune.tuner.report.charts import chart

        charts = {section.key: drawn for section in found.sections if (drawn := chart(section))}
        (folder / "plots").mkdir(exist_ok=True)
        for key, drawn in charts.items():
            _write_svg(drawn | {"width": WIDTH}, folder / "plots" / f"{key}.svg")
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        note(
            f"warning: the report was not written ({type(error).__name__}: {reason}); pretune report {folder}"
        )
        return []
    return [folder / "report.html", folder / "plots"]


def _write_svg(chart: dict[str, object], path: Path) -> None:
    import vl_convert

    from pretune.tuner.report.page import vega_lite_version

    svg = vl_convert.vegalite_to_svg(json.dumps(chart), vl_version=vega_lite_version())
    path.write_text(svg, encoding="utf-8")
