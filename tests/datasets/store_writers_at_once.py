"""Processes that merge a store: ``python -c "import store_writers_at_once as w; w.<function>()" STORE``."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from typing import Any

from sample_trials import sample_trial

from pretune.datasets import TrialStore
from pretune.datasets.upkeep import compact


def append_and_compact() -> None:
    """Merge the store again and again, and append to it in between."""
    store = TrialStore(sys.argv[1])
    for number in range(20):
        compact(store)
        store.append(sample_trial(f"new{number}"))


def killed_while_compacting() -> None:
    """Merge the store, and kill this process at the n-th moment: before and after each rename or removal."""
    left = int(sys.argv[2])

    def moment() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> None:
            moment()
            original(*arguments, **options)
            moment()

        setattr(owner, name, wrapped)

    around(os, "rename")
    around(pathlib.Path, "unlink")
    compact(TrialStore(sys.argv[1]), grace_s=0)
