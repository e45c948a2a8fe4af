"""A process beside a rank that records the trial when the rank cannot: it was killed, or just left."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from pretune.collector.beside import POLL_S, Beside, told
from pretune.collector.process import oom_kills

if TYPE_CHECKING:
    from pretune.datasets.trial import Trial

OTHERS_S = 1.5  # a rank that could still speak knows more: it is given time to record first
LAST_S = OTHERS_S + 5 * POLL_S  # a rank that may only have lost its peer lets all others record first


class Watcher(Beside):
    """Started by a rank. ``trial`` is what it records should the rank vanish: a crash, or out of memory
    where the kernel counts a kill for memory meanwhile.
    """

    def __init__(self, trial: Trial, store: str, rank: int) -> None:
        sheet = {
            "trial": trial.model_dump(mode="json"),
            "store": store,
            "rank": rank,
            "oom_kills": oom_kills(),
        }
        super().__init__("pretune.collector.watcher", sheet)


def main() -> int:
    """Wait for the rank's end; record unless it said that it is done."""
    sheet = told()
    if sheet is not None:
        ended_s = time.time()
        time.sleep(OTHERS_S)
        _record(sheet, ended_s)
    return 0


def _record(sheet: dict[str, Any], ended_s: float) -> None:
    from pretune.collector.keep import keep
    from pretune.datasets.trial import Status, Trial

    kills, rank = oom_kills() - sheet["oom_kills"], f"rank {sheet['rank']}"
    status, cause = Status.CRASH, f"{rank} was killed, or left without a word"
    if kills > 0:
        status, cause = Status.OOM, f"{rank} was killed while the kernel counted {kills} kills for memory"
    trial = Trial.model_validate(sheet["trial"] | {"status": status, "cause": cause})
    keep(trial.model_copy(update={"wall_s": ended_s - trial.created_at.timestamp()}), sheet["store"])


if __name__ == "__main__":
    sys.exit(main())
