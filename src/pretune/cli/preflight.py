"""``pretune preflight``: what would make every trial fail, before one is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli.options import Job, Json, only_json, print_json

if TYPE_CHECKING:
    from pretune.tuner.preflight import NodeSpeed


def preflight(
    job: Job,
    out: Annotated[
        Path | None, typer.Option(help="Session folder to come. Default: runs/<job name>.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Time nothing on the nodes.")] = False,
    as_json: Json = False,
) -> None:
    """Look at the job, its hosts and their speed. Exit code 0 when trials can run, else 1 and the reasons."""
    from pretune.tuner.job import JobSpec
    from pretune.tuner.preflight import preflight as look

    spec = JobSpec.from_yaml(job)
    with only_json(as_json):
        found = look(spec, out or Path("runs") / spec.name, speeds=not quick)
    if as_json:
        print_json(found.asdict())
    else:
        for problem in found.problems:
            print(problem)
        for warning in found.warnings:
            print(f"warning: {warning}")
        for node in found.nodes:
            print(_speed(node))
        count = len(found.problems)
        print("ready" if found.ready else f"not ready: {count} problem{'s' if count > 1 else ''}")
    raise typer.Exit(0 if found.ready else 1)


def _speed(node: NodeSpeed) -> str:
    reduced = f", all-reduce {node.all_reduce_s * 1e3:.3g} ms" if node.all_reduce_s else ""
    return f"node {node.node} ({node.host}): matrix product {node.matmul_s * 1e3:.3g} ms{reduced}"
