"""What in a store is no trial: by file, row and reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.datasets import files
from pretune.errors import StoreError

if TYPE_CHECKING:
    from pretune.datasets.store import TrialStore


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a store: the file, the row (None: the whole file), and the reason."""

    file: str
    row: int | None
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.row is None else f' row {self.row}'}: {self.reason}"

    def asdict(self) -> dict[str, Any]:
        """For JSON, with the same keys as a :class:`~pretune.datasets.consistency.Finding`."""
        more = {"field": None, "shown": None, "remedy": None, "warning": False}
        return {**vars(self), **more, "text": str(self)}


def faults_of(store: TrialStore) -> list[Fault]:
    """Everything that is wrong with the files of ``store`` and with their rows."""
    faults = [Fault(str(path), None, reason) for path, reason in strays(store)]
    seen: dict[str, Path] = {}
    for path in store.files():
        try:
            table = files.read(path)
        except files.UnreadableFile as error:
            faults.append(Fault(str(path), None, error.reason))
            continue
        for number, row in files.rows_of(table):
            reason = _wrong(store, path, number, row, seen)
            if reason:
                faults.append(Fault(str(path), number, reason))
    return faults


def strays(store: TrialStore) -> Iterator[tuple[Path, str]]:
    """Files where no reader looks, and why."""
    for path in sorted(store.root.glob("platform=*/*")):
        if path.suffix != ".parquet" and not path.name.startswith("."):
            yield path, "is no Parquet file by its name, so it is not read; move it aside"
    for path in sorted(store.root.glob("*.parquet")):
        yield path, "lies in no folder platform=NAME, so it is not read; move it there, or aside"


def _wrong(store: TrialStore, path: Path, number: int, row: dict, seen: dict[str, Path]) -> str | None:
    """What is wrong with one row; notes its id in ``seen``."""
    try:
        trial = store.trial(path, number, row)
    except StoreError as error:
        return str(error).removeprefix(f"{path} row {number}: ")
    if trial.trial_id in seen:
        return f"trial_id {trial.trial_id} is already in {seen[trial.trial_id]}"
    seen[trial.trial_id] = path
    if path.parent.name != f"platform={trial.platform.name}":
        return f"its platform is {trial.platform.name}, which is another folder"
    return None
