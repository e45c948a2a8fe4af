"""Files of one format into a store, and the account of what became of every run in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pretune.datasets import schema
from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.opened import telling
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial
from pretune.errors import InputError

if TYPE_CHECKING:
    import polars as pl

AT_ONCE = 1000  # trials that are appended together: what an interruption loses is imported again
TAKEN, THERE, ASIDE = "taken", "already_there", "set_aside"
Item = TypeVar("Item")


@dataclass
class Account:
    """What became of every run: taken, there before, or set aside with file, line and reason.

    ``files``: source -> how many of its runs came to each of the three.
    """

    taken: int = 0
    already_there: int = 0
    set_aside: list[SetAside] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, dict[str, int]] = field(default_factory=dict)

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


class Watcher:
    """Who is told how far an import is; this one keeps it to itself."""

    def planned(self, sources: list[Any]) -> None:
        """All that will be read, in order."""

    def reading(self, source: Any) -> None:
        """The next one begins."""

    def read(self, count: int) -> None:
        """So many more bytes of it were read."""


def import_files(
    importer: Importer,
    paths: Iterable[Path | str],
    given: Given,
    store: TrialStore,
    watcher: Watcher | None = None,
) -> Account:
    """Import the files, and all files in the folders, of ``paths``. The same file twice adds nothing.

    Among several files, one that is not of the format is set aside. Raises :class:`InputError` where it is
    the only one, or for a path that is not there, and :class:`StoreError` when the store cannot be written;
    what was appended before stays.
    """
    kinds = _Kinds(store)

    def made(run: Run, source: Any) -> tuple[str, Trial] | SetAside:
        trial = complete(run, source, importer.name, given)
        if isinstance(trial, SetAside):
            return trial
        other = kinds.other(trial)
        return SetAside(str(source), run.line, other) if other else (trial.trial_id, trial)

    return accounted(importer, paths, made, _known(store), store.append, watcher)


def accounted(
    importer: Importer,
    paths: Iterable[Path | str],
    made: Callable[[Run, Any], tuple[str, Item] | SetAside],
    known: set[str],
    append: Callable[[list[Item]], object],
    watcher: Watcher | None = None,
) -> Account:
    """The importer's runs, each ``made`` an item with its id, and appended unless its id is ``known``."""
    account, waiting, watcher = Account(), list[Item](), watcher or Watcher()
    sources = [found for path in paths for found in importer.sources(path)]
    watcher.planned(sources)
    for source in sources:
        watcher.reading(source)
        tally = account.files.setdefault(str(source), {TAKEN: 0, THERE: 0, ASIDE: 0})
        with telling(watcher.read):
            for found in _read(importer, source, alone=len(sources) == 1):
                item = found if isinstance(found, SetAside) else made(found, source)
                if isinstance(item, SetAside):
                    account.set_aside.append(item)
                    tally[ASIDE] += 1
                elif item[0] in known:
                    tally[THERE] += 1
                else:
                    known.add(item[0])
                    waiting.append(item[1])
                    tally[TAKEN] += 1
                if not isinstance(found, SetAside):
                    account.notes += [f"{source}: {note}" for note in found.notes]
                if len(waiting) == AT_ONCE:
                    append(waiting)
                    waiting = []
    if waiting:
        append(waiting)
    account.taken, account.already_there = (
        sum(tally[kind] for tally in account.files.values()) for kind in (TAKEN, THERE)
    )
    return account


def _read(importer: Importer, source: Any, alone: bool) -> Iterator[Run | SetAside]:
    try:
        yield from importer.read(source)
    except InputError as error:
        if alone:
            raise
        yield SetAside(str(source), None, str(error).removeprefix(f"{source}: "))


class _Kinds:
    """The kind of value, a number, a word or a truth, that each knob of the users' own has in a store."""

    def __init__(self, store: TrialStore) -> None:
        found = store.scan().collect_schema()
        self._kinds = {name: _kind_of(dtype) for name, dtype in found.items() if _is_own_knob(name)}

    def other(self, trial: Trial) -> str | None:
        """Why the trial cannot be beside those before: a knob of it is of another kind; else None."""
        settings = {f"knob.{name}": value for name, value in trial.knobs.settings().items()}
        theirs = {name: _kind(value) for name, value in settings.items() if _is_own_knob(name)}
        for name, kind in theirs.items():
            before = self._kinds.get(name, kind)
            if before != kind:
                return (
                    f"{name} is a {kind} here ({settings[name]!r}) and a {before} in other runs; "
                    "import it under another name, or into a store of its own"
                )
        self._kinds |= theirs
        return None


def _is_own_knob(column: str) -> bool:
    return column.startswith(schema.OPEN["knobs"]) and schema.declared_type(column) is None


def _kind(value: object) -> str:
    return "truth" if isinstance(value, bool) else "word" if isinstance(value, str) else "number"


def _kind_of(dtype: pl.DataType) -> str:
    return "number" if dtype.is_numeric() else "truth" if str(dtype) == "Boolean" else "word"


def _known(store: TrialStore) -> set[str]:
    return set(store.query(lambda trials: trials.select("trial_id"))["trial_id"].to_list())
