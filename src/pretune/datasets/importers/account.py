"""Files of one format into a store, and the account of what became of every run in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial

AT_ONCE = 1000  # trials that are appended together: what an interruption loses is imported again
Item = TypeVar("Item")


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

    def made(run: Run, source: Any) -> tuple[str, Trial] | SetAside:
        trial = complete(run, source, importer.name, given)
        return trial if isinstance(trial, SetAside) else (trial.trial_id, trial)

    return accounted(importer, paths, made, _known(store), store.append, progress)


def accounted(
    importer: Importer,
    paths: Iterable[Path | str],
    made: Callable[[Run, Any], tuple[str, Item] | SetAside],
    known: set[str],
    append: Callable[[list[Item]], object],
    progress: Callable[[Path], None] | None = None,
) -> Account:
    """The importer's runs, each ``made`` an item with its id, and appended unless its id is ``known``."""
    account, waiting = Account(), list[Item]()
    for source in (found for path in paths for found in importer.sources(path)):
        if progress:
            progress(source)
        for found in importer.read(source):
            item = found if isinstance(found, SetAside) else made(found, source)
            if isinstance(item, SetAside):
                account.set_aside.append(item)
            elif item[0] in known:
                account.already_there += 1
            else:
                known.add(item[0])
                waiting.append(item[1])
                account.taken += 1
            if not isinstance(found, SetAside):
                account.notes += [f"{source}: {note}" for note in found.notes]
            if len(waiting) == AT_ONCE:
                append(waiting)
                waiting = []
    if waiting:
        append(waiting)
    return account


def _known(store: TrialStore) -> set[str]:
    return set(store.query(lambda trials: trials.select("trial_id"))["trial_id"].to_list())
