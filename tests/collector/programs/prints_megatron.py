"""Prints what Megatron-LM prints while it trains: prints_megatron.py STEPS SECONDS [END].

A step computes for half of its SECONDS and sleeps for the rest. END: fail, oom, teardown (an exception after
the last step, and exit code 0), wait (for a signal).
"""

import json
import sys
import time

ARGUMENTS = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "padded_vocab_size": 256,
    "max_position_embeddings": 32,
    "seq_length": 32,
    "micro_batch_size": 2,
    "global_batch_size": 4,
    "world_size": 1,
    "bf16": False,
    "fp16": False,
    "log_interval": 1,
}


def main():
    steps, seconds, end = int(sys.argv[1]), float(sys.argv[2]), (*sys.argv[3:], "")[0]
    print("------------------------ arguments ------------------------")
    for name, value in ARGUMENTS.items():
        print(f"  {name} {'.' * (47 - len(name))} {value}")
    print("-------------------- end of arguments ---------------------", flush=True)
    took = []
    for step in range(1, steps + 1):
        began = time.perf_counter()
        while time.perf_counter() - began < seconds / 2:
            pass
        time.sleep(seconds / 2)
        took.append(time.perf_counter() - began)
        print(
            f" iteration {step:8d}/{steps:8d} | consumed samples: {4 * step:12d} | "
            f"elapsed time per iteration (ms): {took[-1] * 1e3:.3f} | global batch size:     4 | "
            f"lm loss: {4 - step / 100:.6E} | number of nan iterations:   0 |",
            flush=True,
        )
    print(json.dumps({"took": took}), file=sys.stderr, flush=True)
    if end == "wait":
        time.sleep(60)
    if end in ("fail", "oom", "teardown"):
        error = {"oom": "torch.OutOfMemoryError: CUDA out of memory."}.get(
            end, "RuntimeError: cable fell out"
        )
        print(f"Traceback (most recent call last):\n  File 'x', line 1\n{error}", file=sys.stderr)
    sys.exit(int(end in ("fail", "oom")))


if __name__ == "__main__":
    main()
