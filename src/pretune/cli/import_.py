"""``pretune import``: other people's logs and tables as trials."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli.options import Json, print_json
from pretune.datasets.importers import FORMATS

if TYPE_CHECKING:
    from pretune.datasets.importers.account import Account

SHOWN = 20  # runs set aside, notes, and files, that the terminal lists; --json has all


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
    from pretune.cli.reading import reading
    from pretune.datasets.durable import named_folder
    from pretune.datasets.importers import importer
    from pretune.datasets.importers.account import import_files
    from pretune.datasets.importers.complete import Given
    from pretune.datasets.importers.kernel_tuner import KernelTuner, import_tables
    from pretune.datasets.importers.mapping import Mapping
    from pretune.datasets.platform import StatedPlatform
    from pretune.datasets.store import TrialStore
    from pretune.datasets.tuning_table import TuningTables
    from pretune.errors import InputError

    kind = importer(format)
    told = Mapping.from_yaml(mapping) if mapping else None
    where = StatedPlatform.from_yaml(platform) if platform else None
    given = Given(where, dict(told.constants) if told else {})
    names = told if told and told.columns else None
    if names and not kind.maps:
        raise InputError(f"{mapping}: columns: {format} names its own; leave them out (constants may stay)")
    reader = kind(names) if kind.maps else kind()  # type: ignore[call-arg]
    trials = TrialStore(store)
    named_folder(trials.root, f"--store {store}")
    with reading() as watcher:
        if isinstance(reader, KernelTuner):
            account = import_tables(reader, paths, given, TuningTables(store), watcher)
        else:
            account = import_files(reader, paths, given, trials, watcher)
    if as_json:
        print_json({"store": store, "format": format, **account.asdict()})
    else:
        _print(account, store)


def _print(account: Account, store: str) -> None:
    for aside in account.set_aside[:SHOWN]:
        print(f"set aside {aside.file}{'' if aside.line is None else f' line {aside.line}'}: {aside.reason}")
    _more(len(account.set_aside))
    for note in account.notes[:SHOWN]:
        print(f"note {note}")
    _more(len(account.notes))
    if len(account.files) > 1:
        _print_files(account)
    print(
        f"{store}: {account.taken} taken, {account.already_there} already there, "
        f"{len(account.set_aside)} set aside"
    )


def _more(count: int) -> None:
    if count > SHOWN:
        print(f"... and {count - SHOWN} more (--json lists all)")


def _print_files(account: Account) -> None:
    """A line for each file; of many, those of which most was set aside."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    files = sorted(account.files.items(), key=lambda each: -each[1]["set_aside"])[:SHOWN]
    table = Table(box=box.SIMPLE)
    table.add_column("file", overflow="fold")  # whole: the end of a path is what tells it from others
    for heading in ("taken", "already there", "set aside"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, tally in files if len(account.files) > SHOWN else account.files.items():
        table.add_row(name, *(f"{count:,}" for count in tally.values()))
    Console(file=sys.stdout, markup=False, highlight=False).print(table)
    _more(len(account.files))
