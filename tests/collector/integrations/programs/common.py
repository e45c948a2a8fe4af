"""What the training programs share: a stopwatch around optimizer steps that knows nothing of pretune."""

import json
import time

from pretune.datasets import Measure

MEASURE = Measure(min_warmup_windows=2, max_warmup_windows=3, min_windows=6, max_windows=20, max_seconds=1.5)


class Stopwatch:
    """Notes when each optimizer step ended, less what is paused."""

    def __init__(self):
        self.ends, self.paused = [], 0.0

    def step(self):
        self.ends.append(time.perf_counter() - self.paused)

    def said(self, rank, **more):
        if rank == 0:
            print(json.dumps({"ends": self.ends, **more}), flush=True)
