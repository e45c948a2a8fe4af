"""One rank of a plain loop under a recorder: ``recorder_ranks.py STORE steady|diverge|oom``.

Rank 1 is the slower one; with "diverge" it alone loses its loss, with "oom" it alone has no memory
left. Prints one JSON line.
"""

import json
import os
import sys
import time

import torch
from torch import distributed

from pretune.collector import TrialRecorder
from pretune.collector.outcome import Diverged
from pretune.datasets import Accelerator, Knobs, Measure, ModelSpec, Platform, Workload

MODEL = ModelSpec(name="tiny", layers=1, hidden_size=16, heads=2, vocabulary=32, max_positions=8)


def main():
    store, mode = sys.argv[1:]
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    recorder = TrialRecorder(
        workload=Workload(model=MODEL, sequence_length=8, global_batch_tokens=64, precision="fp32"),
        platform=Platform(
            name="here", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo"
        ),
        knobs=Knobs(micro_batch=4),
        store=store,
        measure=Measure(min_windows=4, max_windows=50, max_seconds=0.5),
    )
    steps, ended = 0, "measured"
    try:
        with recorder as r:
            going = True
            while going:
                time.sleep(0.02 + 0.03 * rank)
                steps += 1
                lost = mode == "diverge" and rank == 1 and steps == 2
                if mode == "oom" and rank == 1 and steps == 2:
                    raise MemoryError("no room")
                going = r.step(loss=torch.tensor(float("nan") if lost else 1.0 + rank))
    except (Diverged, MemoryError, RuntimeError) as error:
        ended = type(error).__name__
    print(
        json.dumps({"rank": rank, "steps": steps, "ended": ended, "wrote": recorder.trial is not None}),
        flush=True,
    )
    if mode == "oom":
        os._exit(0)
    distributed.barrier()  # gloo's threads abort a rank that leaves while its peer still speaks
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
