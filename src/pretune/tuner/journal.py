"""What a session tells its tracker, kept so that ``pretune sync`` can tell it to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pretune.collector.evidence import read_json, write_json
from pretune.mlflow_config.base import Tracker
from pretune.tuner.runner import GuardedTracker, Watcher

FILE = "tracked.json"


class Journal(GuardedTracker):
    """A guarded tracker that keeps in ``folder`` what was told of the session and its fits.

    The trials are in the store. Files are named relative to ``folder``: it may be synced from
    anywhere. A session that begins again has not ended, whatever an earlier run of it told.
    """

    def __init__(self, tracker: Tracker, watcher: Watcher, folder: Path) -> None:
        super().__init__(tracker, watcher, f"Later: pretune sync {folder}")
        self._folder = folder
        self._fit_params: dict[str, dict[str, Any]] = {}

    def session_begun(self, session_id: str, name: str, params: Mapping[str, Any]) -> str | None:
        self._kept: dict[str, Any] = {"name": name, "params": dict(params), "fits": [], "ended": None}
        write_json(self._folder / FILE, self._kept)
        return super().session_begun(session_id, name, params)

    def session_ended(
        self, session_id: str, metrics: Mapping[str, float], files: list[Path], note: str
    ) -> None:
        self._kept["ended"] = {"metrics": dict(metrics), "files": self._names(files), "note": note}
        write_json(self._folder / FILE, self._kept)
        super().session_ended(session_id, metrics, files, note)

    def fit_begun(self, name: str, params: Mapping[str, Any]) -> None:
        self._fit_params[name] = dict(params)
        super().fit_begun(name, params)

    def fit_ended(self, name: str, metrics: Mapping[str, float], files: list[Path], model: Path) -> None:
        fit = {"name": name, "params": self._fit_params[name], "metrics": dict(metrics)}
        (kept_model,) = self._names([model])
        self._kept["fits"].append(fit | {"files": self._names(files), "model": kept_model})
        write_json(self._folder / FILE, self._kept)
        super().fit_ended(name, metrics, files, model)

    def _names(self, files: Iterable[Path]) -> list[str]:
        return [str(path.relative_to(self._folder)) for path in files]


def retell(
    folder: Path, session_id: str, tracker: Tracker, tell_trials: Callable[[], int]
) -> tuple[int, list[str]]:
    """Tell ``tracker`` the session in ``folder``, with ``tell_trials`` in the middle.

    Returns what that returned, and the names of the files that are gone. The session's run is
    closed only where it came to its end. Raises :class:`TrackingError` when the tracker does.
    """
    kept = read_json(folder / FILE) or {"fits": [], "ended": None}
    missing: list[str] = []

    def found(names: list[str]) -> list[Path]:
        missing.extend(name for name in names if not (folder / name).exists())
        return [folder / name for name in names if name not in missing]

    if "name" in kept:
        tracker.session_begun(session_id, kept["name"], kept["params"])
    told = tell_trials()
    for fit in kept["fits"]:
        for model in found([fit["model"]]):
            tracker.fit_begun(fit["name"], fit["params"])
            tracker.fit_ended(fit["name"], fit["metrics"], found(fit["files"]), model)
    if ended := kept["ended"]:
        tracker.session_ended(session_id, ended["metrics"], found(ended["files"]), ended["note"])
    return told, missing
