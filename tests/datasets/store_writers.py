"""Writers that are killed in the middle. Arguments: store, log, rounds, seed, and "atomic" or "direct".

Each round forks a writer that appends trials one after the other and notes in the log each id
that ``append`` returned for; the parent lets none to two of them through, and kills the writer
with SIGKILL at a random moment of the next.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from sample_trials import sample_trial

from pretune.datasets import TrialStore


class DirectStore(TrialStore):
    """The store with the atomic rename taken out: it writes where readers look."""

    def _put(self, table, path):  # type: ignore[no-untyped-def]
        with path.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())


def write_forever(store: TrialStore, log: Path, prefix: str, told: int) -> None:
    with log.open("a") as notes:
        for number in range(1_000_000):
            name = f"{prefix}-{number}"
            store.append(sample_trial(name, software={"padding": "x" * 1000}))
            notes.write(name + "\n")
            notes.flush()
            os.write(told, b".")


def main(root: str, log: str, rounds: int, seed: int, kind: str) -> None:
    store = TrialStore(root) if kind == "atomic" else DirectStore(root)
    rng = random.Random(seed)
    store.append(sample_trial("first"))  # so that every import is done before the first fork
    began = time.perf_counter()
    store.append(sample_trial("second"))
    one_append_s = time.perf_counter() - began
    hear, tell = os.pipe()
    for number in range(rounds):
        child = os.fork()
        if child == 0:
            write_forever(store, Path(log), f"r{number}", tell)
        for _ in range(rng.randrange(3)):
            os.read(hear, 1)
        time.sleep(rng.uniform(0, 2 * one_append_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
