"""Files of one format into a store, and the account of what became of every run in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pretune.datasets.importers.base import Importer, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial

AT_ONCE = 1000  # trials that are appended together: what an interruption loses is imported again


@dataclass
class Account:
    """What became of every run: taken, there before, or set aside with file, line and reason."""

    taken: int = 0
    already_there: int = 0
    set_aside: list[SetAside] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


def import_files(
    importer: Importer,
    paths: Iterable[Path | str],
    given: Given,
    store: TrialStore,
    progress: Callable[[Path], None] | None = None,
) -> Account:
    """Import the files, and all files in the folders, of ``paths``. The same file twice adds nothing.

    ``progress`` is told each file before it is read. Raises :class:`InputError` for a path that is not there,
    and :class:`StoreError` when the store cannot be written; what was appended before stays.
    """
    account, known = Account(), _known(store)
    waiting: list[Trial] = []
    for path in (source for given_path in paths for source in importer.sources(given_path)):
        if progress:
            progress(path)
        for found in importer.read(path):
            trial = found if isinstance(found, SetAside) else complete(found, path, importer.name, given)
            if isinstance(trial, SetAside):
                account.set_aside.append(trial)
            elif trial.trial_id in known:
                account.already_there += 1
            else:
                known.add(trial.trial_id)
                waiting.append(trial)
                account.taken += 1
            if not isinstance(found, SetAside):
                account.notes += [f"{path}: {note}" for note in found.notes]
            if len(waiting) == AT_ONCE:
                store.append(waiting)
                waiting = []
    if waiting:
        store.append(waiting)
    return account


def _known(store: TrialStore) -> set[str]:
    return set(store.query(lambda trials: trials.select("trial_id"))["trial_id"].to_list())
