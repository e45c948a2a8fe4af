"""``pretune sync``: tell the tracking server what it missed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Json, Tracking, only_json, print_json


def sync(
    session: Annotated[Path, typer.Argument(metavar="SESSION_DIR", help="The --out folder of a session.")],
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Log what tracking does not have yet of a session: trials, fits, answer. Safe to repeat."""
    from pretune.datasets.spec import read_yaml
    from pretune.datasets.store import TrialStore
    from pretune.mlflow_config import sync as send
    from pretune.mlflow_config import tracker
    from pretune.tuner.journal import retell
    from pretune.tuner.runner import logged_files
    from pretune.tuner.search import SessionState

    path = session / "session.json"
    state = SessionState.from_mapping(read_yaml(path), str(path))
    with only_json(as_json):
        store = TrialStore(session / "trials")
        runs = session / "runs"
        place = tracker(tracking, session)
        told, missing = retell(
            session,
            state.id,
            place,
            lambda: send(store, state.id, place, lambda t: logged_files(runs / t.trial_id)),
        )
    for name in missing:
        print(f"warning: {session / name}: is gone, so tracking does not have it", file=sys.stderr)
    if as_json:
        print_json({"session": state.id, "trials": told, "missing": missing})
    else:
        print(f"{state.id}: {told} trials are in tracking")
