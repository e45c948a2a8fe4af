"""A process beside a rank that records the trial when the rank cannot: it was killed, or just left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from pretune.collector.process import oom_kills

if TYPE_CHECKING:
    from pretune.datasets.trial import Trial

POLL_S = 0.2
OTHERS_S = 1.5  # a rank that could still speak knows more: it is given time to record first
LAST_S = OTHERS_S + 5 * POLL_S  # a rank that may only have lost its peer lets all others record first


class Watcher:
    """Started by a rank, outlives it, and ends when ``dismiss`` is called.

    In a session of its own, so that what ends the training does not end it too; a scheduler that kills the
    whole control group does. ``trial`` is what it records should the rank vanish: a crash, or out of memory
    where the kernel counts a kill for memory meanwhile.
    """

    def __init__(self, trial: Trial, store: str, rank: int) -> None:
        sheet = {
            "trial": trial.model_dump(mode="json"),
            "store": store,
            "rank": rank,
            "parent": os.getpid(),
            "oom_kills": oom_kills(),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pretune.collector.watcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._tell(sheet)

    def dismiss(self) -> None:
        """The rank has recorded, or there is nothing to record."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        self._tell({"done": True})
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, said: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody ended it: the training goes on without
            self._process.stdin.write(json.dumps(said) + "\n")
            self._process.stdin.flush()


def main() -> int:
    """Wait for the rank's end; record unless it said that it is done."""
    with open(0, "rb", buffering=0) as said:  # a buffer would hold words back from select
        sheet = json.loads(said.readline() or b"null")
        if sheet is None or not _vanished(sheet["parent"], said):
            return 0
    time.sleep(OTHERS_S)
    _record(sheet)
    return 0


def _vanished(parent: int, said: IO[bytes]) -> bool:
    """True when the rank is gone, False when it dismissed its watcher.

    Its end is seen by its parenthood: workers that it forked may hold the pipe open after it.
    """
    while True:
        readable, _, _ = select.select([said], [], [], POLL_S)
        if readable:
            return said.readline() == b""  # the pipe ended without a word
        if os.getppid() != parent:
            return True


def _record(sheet: dict[str, Any]) -> None:
    from pretune.collector.keep import keep
    from pretune.datasets.trial import Status, Trial

    kills, rank = oom_kills() - sheet["oom_kills"], f"rank {sheet['rank']}"
    status, cause = Status.CRASH, f"{rank} was killed, or left without a word"
    if kills > 0:
        status, cause = Status.OOM, f"{rank} was killed while the kernel counted {kills} kills for memory"
    trial = Trial.model_validate(sheet["trial"] | {"status": status, "cause": cause})
    keep(trial.model_copy(update={"wall_s": time.time() - trial.created_at.timestamp()}), sheet["store"])


if __name__ == "__main__":
    sys.exit(main())
