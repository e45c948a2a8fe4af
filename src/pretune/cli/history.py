"""``pretune history``: what a store of trials holds, and whether it is sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli.options import Json, print_json

if TYPE_CHECKING:
    from pretune.datasets.store import TrialStore

history = typer.Typer(help="Look into a store of trials.", no_args_is_help=True)

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A store's folder, or 'shipped'.")]


@history.command()
def show(folder: Folder = "shipped", as_json: Json = False) -> None:
    """Count the trials of each platform and workload, with their best throughput."""
    import polars as pl

    from pretune.datasets import Workload

    speed = pl.col("tokens_per_s_per_device")
    workload = [f"workload.{name}" for name in Workload.model_fields if name != "model"]
    group = ["platform.name", "model.name", *workload]
    rows = (
        open_store(folder)
        .scan()
        .group_by(group)
        .agg(
            pl.len().alias("trials"),
            *((pl.col("status") == status).sum().alias(status) for status in _statuses()),
            speed.max().alias("best_tokens_per_s_per_device"),
            speed.median().alias("median_tokens_per_s_per_device"),
        )
        .sort(group)
        .collect()
        .to_dicts()
    )
    if as_json:
        print_json({"store": folder, "trials": sum(row["trials"] for row in rows), "platforms": rows})
    else:
        from pretune.cli.show import show_rows

        show_rows(f"{folder}: best and median in tokens/s per device", [_short(row) for row in rows])


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the workload in one word, which leaves room for the figures on a terminal."""
    sequence, optimizer = row["workload.sequence_length"], row["workload.optimizer"]
    sequences = row["workload.global_batch_tokens"] // sequence
    workload = f"{row['model.name']}-{sequence}x{sequences}-{row['workload.precision']}"
    return {
        "platform": row["platform.name"],
        "workload": workload if optimizer == "adamw" else f"{workload}-{optimizer}",
        **{name.split("_tokens")[0]: value for name, value in row.items() if "." not in name},
    }


@history.command()
def validate(folder: Folder = "shipped", as_json: Json = False) -> None:
    """Check every file and row of a store, alone and against the others; exit code 1 when one is wrong."""
    store = open_store(folder)
    faults = [fault.asdict() for fault in store.validate()]
    if all(fault["row"] is not None for fault in faults):  # else there is no frame to read
        faults += _findings(store, {(fault["file"], fault["row"]) for fault in faults})
    wrong = [fault for fault in faults if not fault["warning"]]
    if as_json:
        print_json({"store": folder, "files": len(store.files()), "faults": faults})
    else:
        for fault in faults:
            print(fault["text"])
        print(
            f"{folder}: {len(store.files())} files, {len(wrong)} faults, {len(faults) - len(wrong)} warnings"
        )
    if wrong:
        raise typer.Exit(1)


def _findings(store: TrialStore, told: set[tuple[str, int | None]]) -> list[dict[str, Any]]:
    """What contradicts itself or the rest, of the rows that are not ``told`` yet."""
    from pretune.model.plausibility import examine

    found = examine(store.frame(places=True)).findings
    return [each.asdict() for each in found if (each.file, each.row) not in told]


def open_store(folder: str) -> TrialStore:
    """The store; raises :class:`InputError` when the folder holds no trials."""
    from pretune.errors import InputError
    from pretune.tuner.job import find_store

    store = find_store(folder)
    if not store.files():
        raise InputError(f"{folder}: holds no trials; name a folder with platform=*/*.parquet in it")
    return store


def _statuses() -> list[str]:
    from pretune.datasets.trial import Status

    return [str(status) for status in Status]
