"""A DeepSpeed loop that knows nothing of pretune, on any number of ranks: prints_deepspeed.py STEPS [END].

Prints the end of each optimizer step by its own stopwatch. END: oom (the second rank asks for more memory
than there is).
"""

import json
import os
import sys
import time

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "log_level": "info",  # its steps are not printed without
    "steps_per_print": 1,
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1000000},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}


def main():
    steps, *end = [word for word in sys.argv[1:] if not word.startswith("--")]
    deepspeed.init_distributed(dist_backend="gloo")
    rank = int(os.environ["RANK"])
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    ends = []
    for step in range(int(steps)):
        for _ in range(2):
            loss = (engine(torch.ones(256, 512)) ** 2).mean()
            engine.backward(loss)
            engine.step()
        ends.append(time.perf_counter())
        if end == ["oom"] and rank == 1 and step == 3:
            torch.empty(2**60, dtype=torch.uint8)
    if rank == 0:
        print(json.dumps({"ends": ends}), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
