"""How far an import is: a bar by bytes where a person looks, a line for each file where none does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pretune.datasets.importers.account import Watcher


@contextmanager
def reading() -> Iterator[Watcher]:
    """What tells the terminal, on stderr, for as long as the import goes on."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress)


class _Lines(Watcher):
    def reading(self, source: Any) -> None:
        print(f"reading {source}", file=sys.stderr)


class Bar(Watcher):
    """Bytes of all files. One that is no file, or is read in another way, counts when the next one begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("import", total=None)
        self._ends = iter([0])  # bytes of each source and of all before it
        self._end = 0

    def planned(self, sources: list[Any]) -> None:
        ends = list(accumulate(map(_size, sources), initial=0))
        self._ends = iter(ends[1:])
        self._progress.update(self._task, total=ends[-1] or None)

    def reading(self, source: Any) -> None:
        self._progress.update(self._task, description=Path(str(source)).name, completed=self._end)
        self._end = next(self._ends)

    def read(self, count: int) -> None:
        done = self._progress.tasks[self._task].completed + count
        self._progress.update(self._task, completed=min(done, self._end))


def _size(source: Any) -> int:
    return source.stat().st_size if isinstance(source, Path) and source.is_file() else 0
