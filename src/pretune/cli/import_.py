"""``pretune import``: other people's logs and tables as trials."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Json, print_json
from pretune.datasets.importers import FORMATS

SHOWN = 20  # runs set aside that the terminal lists; --json has all


def import_(
    format: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")],
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, folders of them, or a tracking URI.")
    ],
    store: Annotated[str, typer.Option(help="Where the trials go: a folder, or any fsspec URL.")],
    platform: Annotated[Path | None, typer.Option(help="Where it ran, where the log does not say.")] = None,
    mapping: Annotated[
        Path | None, typer.Option("--map", help="What columns are called; constants that a log leaves out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import runs that pretune did not record. The same file twice adds nothing."""
    from pretune.datasets.importers import importer
    from pretune.datasets.importers.account import import_files
    from pretune.datasets.importers.complete import Given
    from pretune.datasets.importers.kernel_tuner import KernelTuner, import_tables
    from pretune.datasets.importers.mapping import Mapping
    from pretune.datasets.platform import Platform
    from pretune.datasets.store import TrialStore
    from pretune.datasets.tuning_table import TuningTables

    kind = importer(format)
    told = Mapping.from_yaml(mapping) if mapping else None
    given = Given(Platform.from_yaml(platform) if platform else None, dict(told.constants) if told else {})
    reader = kind(told if told and told.columns else None) if kind.maps else kind()  # type: ignore[call-arg]
    if isinstance(reader, KernelTuner):
        account = import_tables(reader, paths, given, TuningTables(store), _reading)
    else:
        account = import_files(reader, paths, given, TrialStore(store), _reading)
    if as_json:
        print_json({"store": store, "format": format, **account.asdict()})
        return
    for aside in account.set_aside[:SHOWN]:
        print(f"set aside {aside.file}{'' if aside.line is None else f' line {aside.line}'}: {aside.reason}")
    if len(account.set_aside) > SHOWN:
        print(f"... and {len(account.set_aside) - SHOWN} more (--json lists all)")
    for note in account.notes[:SHOWN]:
        print(f"note {note}")
    print(
        f"{store}: {account.taken} taken, {account.already_there} already there, "
        f"{len(account.set_aside)} set aside"
    )


def _reading(source: object) -> None:
    print(f"reading {source}", file=sys.stderr)
