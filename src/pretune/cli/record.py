"""``pretune record``: any training command, as it is, becomes a trial.

Standard output is the command's alone, byte for byte; what pretune has to say is one line at the end of
standard error, with ``--json`` that line as one object: ``store``, ``exit_code``, ``trials`` (``trial_id``,
``status``, ``cause``, ``tokens_per_s``), ``recorded_by_command`` (ids), ``reason`` and ``log``.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli.options import print_json

if TYPE_CHECKING:
    from pretune.collector.settling import Recorded

NOT_FOUND, NOT_STARTED = 127, 126  # as a shell says it


def record(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, after --.")],
    store: Annotated[str, typer.Option(help="Where the trial goes: a folder, or any fsspec URL.")],
    platform: Annotated[
        Path | None, typer.Option(help="Where it runs; without it, what this machine shows.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Of what it prints, see pretune import; found without it.")
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option("--map", help="Constants that its output leaves out, see pretune import.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="A new file that keeps its output.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The last line of standard error as one JSON object.")
    ] = False,
) -> None:
    """Run a training command, and record its trial from what it prints, with hardware counters.

    Its output and exit code are the command's own; so are the signals that reach pretune. What was measured
    before somebody stopped it is kept.
    """
    from pretune.collector.reading import LOGS
    from pretune.collector.record import record as run
    from pretune.datasets.durable import named_folder
    from pretune.datasets.importers.complete import Given
    from pretune.datasets.importers.mapping import Mapping
    from pretune.datasets.platform import Platform
    from pretune.datasets.store import TrialStore
    from pretune.errors import InputError

    if format is not None and format not in LOGS:
        raise InputError(
            f"record: --format: {format!r} is nothing that training prints; known: {', '.join(LOGS)}"
        )
    constants = dict(Mapping.from_yaml(mapping).constants) if mapping else {}
    given = Given(Platform.from_yaml(platform) if platform else None, constants)
    trials = TrialStore(store)
    named_folder(trials.root, f"--store {store}")
    try:
        recorded = run(command, trials, given, format, log)
    except OSError as error:
        print(f"pretune: record: {command[0]}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED) from None
    with contextlib.redirect_stdout(sys.stderr):
        if as_json:
            print_json(_object(recorded, store))
        else:
            print(f"pretune: {recorded.line(trials)}")
    raise typer.Exit(recorded.code)


def _object(recorded: Recorded, store: str) -> dict[str, Any]:
    told = ("trial_id", "status", "cause", "tokens_per_s")
    return {
        "store": store,
        "exit_code": recorded.code,
        "trials": [{name: getattr(trial, name) for name in told} for trial in recorded.trials],
        "recorded_by_command": recorded.own,
        "reason": recorded.reason,
        "log": None if recorded.log is None else str(recorded.log),
    }
