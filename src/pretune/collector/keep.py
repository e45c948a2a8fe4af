"""A trial into its store, once: any rank of a job, or the process beside one, may be the one that writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretune.datasets.store import TrialStore
    from pretune.datasets.trial import Trial


def keep(trial: Trial, store: TrialStore | str | Path) -> bool:
    """Append the trial; False when its id is in the store already. Raises :class:`StoreError`."""
    from pretune.datasets.store import TrialStore

    store = store if isinstance(store, TrialStore) else TrialStore(store)
    if trial.trial_id in store:
        return False
    store.append(trial)
    return True
