"""``pretune explain``: what each knob is worth on each platform."""

from __future__ import annotations

from typing import Annotated

import typer

from pretune.cli.options import Json, print_json


def explain(
    history: Annotated[str, typer.Option(help="Store of trials: a folder, a URL, or 'shipped'.")] = "shipped",
    platform: Annotated[str | None, typer.Option(help="This platform alone.")] = None,
    as_json: Json = False,
) -> None:
    """What each knob is worth, by pairs of trials that differ in it alone, and what the defaults cost."""
    from pretune.tuner.explain import explain as explained
    from pretune.tuner.job import find_store

    found = explained(find_store(history).trials(), platform)
    if as_json:
        print_json({"history": history, "insights": [each.asdict() for each in found]})
    else:
        from pretune.cli.show_insight import show_insights

        show_insights(found)
