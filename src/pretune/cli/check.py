"""``pretune check``: whether a configuration can run, before it costs anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pretune.cli.options import Json, print_json

SHOWN = 20  # problems that the terminal lists; --json has all


def check(
    config: Annotated[
        Path,
        typer.Argument(help="A DeepSpeed JSON, a job file (YAML), or Megatron arguments (a list, a script)."),
    ],
    devices: Annotated[str, typer.Option(help="A number, NODESxDEVICES (4x8), or nodes that differ (4+2).")],
    model: Annotated[
        str | None, typer.Option(help="What is trained: a preset's name, or a Hugging Face config.json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge a configuration: exit code 0 when it can run, else 1, the reasons, and what is nearest."""
    from pretune.datasets.presets import model as preset
    from pretune.datasets.workload import ModelSpec
    from pretune.tuner.check import Devices
    from pretune.tuner.check import check as judge

    shape = None
    if model is not None:
        shape = ModelSpec.from_huggingface(model) if Path(model).is_file() else preset(model)
    verdict = judge(config, Devices.read(devices), shape)
    if as_json:
        print_json(verdict.asdict())
    else:
        for problem in verdict.problems[:SHOWN]:
            print(problem if not verdict.legal else f"some: {problem}")
        for warning in verdict.warnings[:SHOWN]:
            print(f"warning: {warning}")
        print(_answer(verdict.asdict()))
    raise typer.Exit(0 if verdict.legal else 1)


def _answer(found: dict[str, Any]) -> str:
    """The last line."""
    if not found["legal"]:
        count = len(found["problems"])
        return f"not legal: {count} problem{'s' if count > 1 else ''}"
    layout = {n: v for n, v in found["resolved"].items() if n != "config" and v not in (None, 1, False)}
    shown = ", ".join(f"{name} {value}" for name, value in layout.items())
    many = found["combinations"]
    share = f"{found['legal_combinations']} of {many} combinations; the first: " if many > 1 else ""
    return f"legal: {share}{shown}"
