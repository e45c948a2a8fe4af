"""A trial into its store, once: any rank of a job, or the process beside one, may be the one that writes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.collector.sheet import SHEET, hand_over

if TYPE_CHECKING:
    from pretune.datasets.store import TrialStore
    from pretune.datasets.trial import Trial

NOTES = "PRETUNE_RECORD"  # names the file in which `pretune record` reads what its command recorded itself


def keep(trial: Trial, store: TrialStore | str | Path) -> bool:
    """Append the trial; False when its id is in the store already. Raises :class:`StoreError`.

    Under ``pretune record`` it is noted too, so that what runs is not recorded twice. In a tuner's trial it
    is handed to the tuner, which keeps it in the session's store, and in no other.
    """
    if SHEET in os.environ:
        return hand_over(trial)
    from pretune.datasets.store import TrialStore

    store = store if isinstance(store, TrialStore) else TrialStore(store)
    if trial.trial_id in store:
        return False
    store.append(trial)
    if NOTES in os.environ:
        with contextlib.suppress(OSError), open(os.environ[NOTES], "a", encoding="utf-8") as notes:
            notes.write(f"{trial.trial_id}\n")  # on another host there is no such file
    return True
