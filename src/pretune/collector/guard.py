"""A process beside ``pretune record`` that ends its command when pretune itself is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from pretune.collector.beside import told
from pretune.collector.process import family, kill_after

MODULE = "pretune.collector.guard"
GRACE_S = 5.0  # in which launchers end their ranks, and ranks may save what they have


def main() -> int:
    """Wait for pretune's end; end what descends from ``pid`` and say where its output lies (``log``)."""
    sheet = told()
    if sheet is None:
        return 0
    processes = family(sheet["pid"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(sheet["pid"], signal.SIGTERM)
    kill_after(processes, GRACE_S)
    with contextlib.suppress(OSError):  # the terminal may be gone too
        print(
            f"pretune: record was killed, so its command was ended; its output is kept in {sheet['log']}",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
