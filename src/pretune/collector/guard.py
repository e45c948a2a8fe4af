"""A process beside one that follows a command: when that one is killed, it ends and settles the command."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from pretune.collector.beside import told
from pretune.collector.process import family, kill_after, oom_kills

if TYPE_CHECKING:
    from pretune.datasets.importers.base import Run
    from pretune.datasets.trial import Trial

MODULE = "pretune.collector.guard"
GRACE_S = 5.0  # in which launchers end their ranks, and ranks may save what they have
LOST = "pretune record was killed, and what it had counted is lost"


def main() -> int:
    """Wait for pretune's end; end what descends from ``pid``, and do with its output what is left to do."""
    sheet = told()
    if sheet is None:
        return 0
    if sheet["settling"] is None:  # a tuner judges it
        _end(sheet["pid"])
        return 0
    said = _recorded(sheet["pid"], sheet["settling"])
    with contextlib.suppress(OSError):  # the terminal may be gone too
        print(f"pretune: record was killed, so its command was ended: {said}", file=sys.stderr)
    return 0


def _recorded(pid: int, sheet: dict[str, Any]) -> str:
    # imported only now: most guards are dismissed
    from pretune.collector.outside import Outside
    from pretune.collector.passthrough import Ended
    from pretune.collector.settling import Settling, last_words, untold

    outside = Outside(pid)
    outside.trainer()  # while its ranks can be asked for their environment
    _end(pid)
    settling, ended = Settling.of(sheet), Ended(128 + signal.SIGKILL, signal.SIGKILL)
    with contextlib.suppress(OSError), settling.log.open("a", encoding="utf-8") as log:
        log.write(f"{last_words(ended, oom_kills() - settling.kills)}\n")
    wall_s = time.monotonic() - settling.began_s

    def beside(_: Run, trial: Trial) -> dict[str, Any]:
        return untold(trial, settling.began, wall_s, {}, {"counters": LOST})

    return settling.settle(ended, outside.platform, beside).line(settling.store)


def _end(pid: int) -> None:
    processes = family(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    kill_after(processes, GRACE_S)


if __name__ == "__main__":
    sys.exit(main())
