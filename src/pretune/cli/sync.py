"""``pretune sync``: tell the tracking server what it missed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretune.cli.options import Json, Tracking, only_json, print_json

if TYPE_CHECKING:
    from pretune.mlflow_config.base import Tracker


def sync(
    session: Annotated[Path, typer.Argument(metavar="SESSION_DIR", help="The --out folder of a session.")],
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Log the trials of a session that tracking does not have yet. Safe to repeat."""
    from pretune.datasets.spec import read_yaml
    from pretune.datasets.store import TrialStore
    from pretune.mlflow_config import sync as send
    from pretune.mlflow_config import tracker
    from pretune.tuner.runner import logged_files
    from pretune.tuner.session import SessionState

    path = session / "session.json"
    state = SessionState.from_mapping(read_yaml(path), str(path))
    with only_json(as_json):
        store = TrialStore(session / "trials")
        runs = session / "runs"
        place = tracker(tracking, session)
        told = send(store, state.id, place, lambda t: logged_files(runs / t.trial_id))
        answered(place, session, state.id)
    if as_json:
        print_json({"session": state.id, "trials": told})
    else:
        print(f"{state.id}: {told} trials are in tracking")


def answered(place: Tracker, session: Path, session_id: str) -> None:
    """Close the session's run, where the session has come to its answer."""
    from pretune.collector.evidence import read_json

    closing = read_json(session / "tracked.json")
    if closing:
        files = [Path(path) for path in closing["files"]]
        place.session_ended(session_id, closing["metrics"], files, closing["note"])
