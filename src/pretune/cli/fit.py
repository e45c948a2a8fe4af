"""``pretune fit``: train the surrogates of a history, with errors on what was not learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretune.cli.options import Json, Tracking, only_json, print_json


def fit(
    history: Annotated[str, typer.Option(help="Store of trials: a folder, or 'shipped'.")] = "shipped",
    out: Annotated[Path, typer.Option(help="Where the surrogates are saved.")] = Path("surrogates"),
    seed: Annotated[int, typer.Option(help="Seed of the folds and of the trees.")] = 0,
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Fit and save one surrogate per platform of the history, cross-validated, with its model card."""
    from pretune.datasets.durable import named_folder
    from pretune.mlflow_config import tracker
    from pretune.tuner.fitting import fit_platforms
    from pretune.tuner.job import read_history
    from pretune.tuner.runner import GuardedTracker, Watcher

    named_folder(out, f"--out {out}")
    watcher = Watcher()
    frame = read_history(history, note=watcher.note)
    with only_json(as_json):
        guarded = GuardedTracker(tracker(tracking, out), watcher, "Run it again to track it.")
        fits = list(fit_platforms(frame, out, guarded, seed))
    if as_json:
        print_json({"history": history, "out": str(out), "fits": fits})
    else:
        from pretune.cli.show import show_fits

        show_fits(history, fits)
