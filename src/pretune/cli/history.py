"""``pretune history``: what a store of trials holds, and whether it is sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli.options import Json, print_json

if TYPE_CHECKING:
    from pretune.datasets.store import TrialStore

history = typer.Typer(help="Look into a store of trials.", no_args_is_help=True)

Folder = Annotated[str, typer.Argument(metavar="STORE", help="A store's folder or URL, or 'shipped'.")]
Own = Annotated[str, typer.Argument(metavar="STORE", help="A store's folder or URL.")]


@history.command()
def show(folder: Folder = "shipped", as_json: Json = False) -> None:
    """Count the trials of each platform and workload, with their best throughput."""
    import polars as pl

    from pretune.datasets import Workload

    speed = pl.col("tokens_per_s_per_device")
    workload = [f"workload.{name}" for name in Workload.model_fields if name != "model"]
    group = ["platform.name", "model.name", *workload]
    figures = (
        pl.len().alias("trials"),
        *((pl.col("status") == status).sum().alias(status) for status in _statuses()),
        speed.max().alias("best_tokens_per_s_per_device"),
        speed.median().alias("median_tokens_per_s_per_device"),
    )
    store = open_store(folder)
    rows = store.query(lambda trials: trials.group_by(group).agg(*figures).sort(group)).to_dicts()
    if as_json:
        print_json({"store": folder, "trials": sum(row["trials"] for row in rows), "platforms": rows})
    else:
        from pretune.cli.show import show_rows

        show_rows(f"{folder}: best and median in tokens/s per device", [_short(row) for row in rows])


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the workload in one word, which leaves room for the figures on a terminal."""
    sequence, optimizer = row["workload.sequence_length"], row["workload.optimizer"]
    sequences = row["workload.global_batch_tokens"] // sequence
    numerics = (row["workload.precision"], None if optimizer == "adamw" else optimizer)
    parts = (row["model.name"], f"{sequence}x{sequences}", *numerics)
    return {
        "platform": row["platform.name"],
        "workload": "-".join(part for part in parts if part is not None),
        **{name.split("_tokens")[0]: value for name, value in row.items() if "." not in name},
    }


@history.command()
def validate(folder: Folder = "shipped", as_json: Json = False) -> None:
    """Check every file and row of a store, alone and against the others; exit code 1 when one is wrong."""
    store = open_store(folder)
    faults = [fault.asdict() for fault in store.validate()]
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


@history.command()
def repair(folder: Own, as_json: Json = False) -> None:
    """Move files that cannot be read to STORE/aside, each with its reason. Nothing is deleted."""
    from pretune.datasets.upkeep import repair as move

    moved = move(_existing(folder))
    if as_json:
        print_json({"store": folder, "moved": [vars(each) for each in moved]})
        return
    for each in moved:
        print(f"{each.file}: {each.reason}; moved to {each.to}")
    print(f"{folder}: {len(moved)} files moved aside")


@history.command()
def compact(
    folder: Own,
    grace_s: Annotated[
        float, typer.Option(help="Seconds that replaced files stay for those who read them.", min=0)
    ] = 300.0,
    as_json: Json = False,
) -> None:
    """Merge small files, one per platform. Readers and writers may go on; run it as often as you like."""
    from pretune.datasets.upkeep import compact as merge

    done = merge(open_store(folder), grace_s)
    if as_json:
        print_json({"store": folder, **vars(done)})
    else:
        print(
            f"{folder}: {done.replaced} files merged into {len(done.merged)}; "
            f"{done.removed} removed that were merged before"
        )


@history.command()
def export(
    folder: Folder,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A new store: a folder or URL.")],
    redact: Annotated[
        bool, typer.Option("--redact", help="Without hosts, paths, users, projects: fit to be shared.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy every trial of a store to another; with --redact only what a cost model learns from."""
    from pretune.datasets.durable import named_folder
    from pretune.datasets.redact import export as write
    from pretune.tuner.job import find_store

    source, target = open_store(folder), find_store(out)
    named_folder(target.root, out)
    count = write(source, target, redact)
    if as_json:
        print_json({"store": folder, "out": out, "trials": count, "redacted": redact})
    else:
        print(f"{out}: {count} trials{', redacted' if redact else ''}")


def _findings(store: TrialStore, told: set[tuple[str, int | None]]) -> list[dict[str, Any]]:
    """What contradicts itself or the rest, of the rows that are not ``told`` yet."""
    import warnings

    from pretune.errors import StoreWarning
    from pretune.model.plausibility import examine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)  # the unreadable files are told already
        frame = store.frame(places=True)
    found = examine(frame).findings
    return [each.asdict() for each in found if (each.file, each.row) not in told]


def open_store(folder: str) -> TrialStore:
    """The store; raises :class:`InputError` when the folder holds no trials."""
    from pretune.errors import InputError

    store = _existing(folder)
    if not store.files():
        raise InputError(f"{folder}: holds no trials; name a folder with platform=*/*.parquet in it")
    return store


def _existing(folder: str) -> TrialStore:
    from pretune.datasets.files import reached
    from pretune.errors import InputError
    from pretune.tuner.job import find_store

    store = find_store(folder)
    with reached(store.root, "cannot be reached ({})"):
        there = store.root.exists()
    if not there:
        raise InputError(f"{folder}: does not exist; name a store's folder or URL")
    return store


def _statuses() -> list[str]:
    from pretune.datasets.trial import Status

    return [str(status) for status in Status]
