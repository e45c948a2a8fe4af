"""A process beside another one that acts when that one is gone, in whatever way."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import IO, Any

POLL_S = 0.2


class Beside:
    """``python -m MODULE``, which outlives this process and ends when ``dismiss`` is called.

    In a session of its own, so that what ends this process does not end it too; a scheduler that kills the
    whole control group does. The module's ``main`` asks :func:`told` for the ``sheet``.
    """

    def __init__(self, module: str, sheet: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._tell({**sheet, "parent": os.getpid()})

    def dismiss(self) -> None:
        """There is nothing left for it to do."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        self._tell({"done": True})
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, said: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody ended it: this process goes on without
            self._process.stdin.write(json.dumps(said) + "\n")
            self._process.stdin.flush()


def told() -> dict[str, Any] | None:
    """Wait for the end of the process that this one stands beside: its sheet, None when it dismissed us."""
    with open(0, "rb", buffering=0) as said:  # a buffer would hold words back from select
        sheet: dict[str, Any] | None = json.loads(said.readline() or b"null")
        return sheet if sheet is not None and _vanished(sheet["parent"], said) else None


def _vanished(parent: int, said: IO[bytes]) -> bool:
    """True when the parent is gone, False when it dismissed us.

    Its end is seen by its parenthood: workers that it forked may hold the pipe open after it.
    """
    while True:
        readable, _, _ = select.select([said], [], [], POLL_S)
        if readable:
            return said.readline() == b""  # the pipe ended without a word
        if os.getppid() != parent:
            return True
