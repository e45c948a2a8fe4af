"""The command line: one file per command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
import warnings

import typer

from pretune.cli.campaign import campaign
from pretune.cli.check import check
from pretune.cli.comm import comm
from pretune.cli.explain import explain
from pretune.cli.fit import fit
from pretune.cli.history import history
from pretune.cli.import_ import import_
from pretune.cli.portability import portability
from pretune.cli.predict import predict
from pretune.cli.preflight import preflight
from pretune.cli.probe import probe
from pretune.cli.record import record
from pretune.cli.sync import sync
from pretune.cli.tune import tune
from pretune.cli.ui import ui
from pretune.errors import InputError, PretuneError, StoreWarning

app = typer.Typer(
    name="pretune",
    help="Find the training configuration with the most tokens per second, in a few real trials.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich takes half of the time that --help may take
)
for command in (tune, check, preflight, probe, predict, comm, fit, explain, portability, campaign, ui, sync):
    app.command()(command)
app.command("import")(import_)
app.command(context_settings={"allow_interspersed_args": False})(record)  # the command's options are its own
app.add_typer(history, name="history")


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 it could not be done, 2 wrong input, 130 interrupted."""
    _say_store_warnings_once()
    try:
        app()
    except PretuneError as error:
        print(f"pretune: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"pretune: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def _say_store_warnings_once() -> None:
    """A file that was left out is one line on standard error, however often it is met."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *rest: (
        f"warning: {message}\n" if issubclass(category, StoreWarning) else usual(message, category, *rest)
    )
    warnings.simplefilter("once", StoreWarning)
