"""``pretune report``: a session or a store as one page, in the terminal, or as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Json, only_json, print_json


def report(
    place: Annotated[str, typer.Argument(metavar="SESSION|STORE", help="A session's folder, or a store.")],
    out: Annotated[Path, typer.Option(help="The page: one HTML file that needs no network.")] = Path(
        "report.html"
    ),
    text: Annotated[bool, typer.Option("--text", help="Show it here instead of writing a page.")] = False,
    as_json: Json = False,
) -> None:
    """The whole story of a session or a store: answer, trials, predictions, memory, knobs, time, failures."""
    from pretune.tuner.report import report as reported

    with only_json(as_json):
        found = reported(place, lambda line: print(line, file=sys.stderr))
    if as_json:
        print_json(found.asdict())
    elif text:
        from pretune.cli.show_report import show_report

        show_report(found)
    else:
        from pretune.tuner.report.page import write_page

        write_page(found, out)
        print(out)
