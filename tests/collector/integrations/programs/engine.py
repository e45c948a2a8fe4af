"""A plain DeepSpeed loop on two ranks: engine.py STORE OUT steady|oom|vanish."""

import os
import signal
import sys
import time

import deepspeed
import torch
from common import MEASURE, Stopwatch

from pretune.collector.integrations.deepspeed import record
from pretune.datasets import ModelSpec

MODEL = ModelSpec(name="mlp", layers=1, hidden_size=64, heads=1, vocabulary=64, max_positions=64)
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1000000},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}


def main():
    store, out, mode = sys.argv[1:]
    deepspeed.init_distributed(dist_backend="gloo")
    rank = int(os.environ["RANK"])
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(2)))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    attached = record(engine, store=store, sequence_length=16, model=MODEL, measure=MEASURE)
    watch = Stopwatch()
    for step in range(40):
        for _ in range(2):
            time.sleep(0.01)
            loss = (engine(torch.ones(2, 64)) ** 2).mean()
            engine.backward(loss)
            engine.step()
        watch.step()
        if step == 3 and rank == 1 and mode == "oom":
            raise MemoryError("no room")
        if step == 3 and rank == 0 and mode == "vanish":
            os.kill(os.getpid(), signal.SIGKILL)
        if step in (5, 9) and mode == "steady":
            began = time.perf_counter()
            engine.save_checkpoint(out)
            watch.paused += time.perf_counter() - began
    watch.said(rank, ended=attached.recorder is not None)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
