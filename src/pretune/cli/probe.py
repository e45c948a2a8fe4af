"""``pretune probe``: what a cluster's hardware is and does, as a platform file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from pretune.cli.options import Json, only_json, print_json


def probe(
    out: Annotated[Path, typer.Option(help="The platform file to write.")],
    hosts: Annotated[
        Path | None,
        typer.Option(help="YAML as under a job's launcher: {hosts: [...]}. Default: this machine's devices."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The platform's name. Default: by its devices.")] = None,
    as_json: Json = False,
) -> None:
    """Measure devices and links in a minute or two, and write OUT for tune, import and predict."""
    from pretune.cli.show import show_platform
    from pretune.collector.detect import probe_platform, ranks_launcher
    from pretune.collector.probe import WHOLE
    from pretune.datasets.durable import named_folder
    from pretune.errors import InputError

    if out.is_dir():
        raise InputError(f"--out {out}: is a folder; name the platform file to write")
    named_folder(out.parent, f"--out {out}: its folder")
    # beside the platform file, where every host sees it
    with (
        ranks_launcher(hosts, out.with_suffix(".probe")) as launcher,
        only_json(as_json),
        _progress() as news,
    ):
        probed = probe_platform(launcher, WHOLE, name, news)
    probed.platform.to_yaml(out)
    for doubt in probed.doubts():
        print(f"warning: {doubt}", file=sys.stderr)
    if as_json:
        print_json({"out": str(out), "platform": probed.platform.model_dump(mode="json"), **probed.measured})
    else:
        show_platform(probed, str(out))


@contextmanager
def _progress() -> Iterator[Callable[[dict[str, Any]], None]]:
    """What is measured now: a line that changes on a terminal, a line each anywhere else."""
    from rich.console import Console

    console, seen = Console(stderr=True), ["starting the ranks"]
    with console.status(seen[0]) as status:

        def news(said: dict[str, Any]) -> None:
            if (phase := said.get("phase")) in (None, seen[-1]):
                return
            seen.append(phase)
            status.update(f"measuring {phase}")
            if not console.is_terminal:
                print(f"measuring {phase}", file=sys.stderr)

        yield news
