"""A training script as users write them, without any library: does what its first word tells."""

import os
import signal
import sys
import time
from pathlib import Path


def train(
    steps=12, say="iter {step}: loss {loss}, time 10.00ms", seconds=0.03, loss=lambda step: 3 - step / 10
):
    time.sleep(0.3)  # as imports take
    for step in range(steps):
        time.sleep(seconds)
        print(say.format(step=step, loss=loss(step)), flush=True)


def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(sys.argv[2], f"hangs-{os.getpid()}").touch()
    time.sleep(600)


def daemon():
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.close(1)
            os.close(2)
            hang()
    raise SystemExit(9)


def complain():
    print("ERROR: could not import flash_attn; RuntimeError: falling back, error error", flush=True)
    train()


def caught():
    print("Traceback (most recent call last):\nRuntimeError: CUDA out of memory. Tried 9 GiB", flush=True)
    train()


def out_of_memory():
    train(3)
    raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 9.00 GiB")


def endless():
    Path(sys.argv[2], f"runs-{os.getpid()}").touch()
    train(10**6)


ACTS = {
    "endless": endless,
    "train": train,
    "silent": lambda: print("usage: script.py [--train]", flush=True),
    "short": lambda: train(2),
    "nan": lambda: train(loss=lambda step: 3.0 if step < 5 else float("nan")),
    "hang": hang,
    "stuck": lambda: (train(5), hang()),
    "daemon": daemon,
    "complain": complain,
    "caught": caught,
    "oom": out_of_memory,
    "exit": lambda: (train(), sys.exit(3)),
    "segfault": lambda: (train(4), os.kill(os.getpid(), signal.SIGSEGV)),
}

if __name__ == "__main__":
    ACTS[sys.argv[1]]()
