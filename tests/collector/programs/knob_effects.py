"""One rank: build each case's training, run a window, and write down what it did.

``torchrun … knob_effects.py CASES.json RESULTS.json``; both are lists in the same order.
"""

import gc
import json
import sys
from collections import defaultdict
from contextlib import suppress
from functools import wraps
from pathlib import Path

import torch
from torch import distributed
from torch.autograd.graph import saved_tensors_hooks

from pretune.collector import device
from pretune.collector.training import run as training
from pretune.datasets import TrialSpec

# function of torch.distributed -> (its kind, which argument is the whole tensor)
WATCHED = {
    "all_reduce": ("all_reduce", 0),
    "reduce": ("reduce", 0),
    "broadcast": ("broadcast", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "reduce_scatter_tensor": ("reduce_scatter", 1),
    "all_gather_single": ("all_gather", 0),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "all_gather": ("all_gather", 0),
    "reduce_scatter": ("reduce_scatter", 1),
}


def size(tensors):
    tensors = tensors if isinstance(tensors, list) else [tensors]
    return sum(t.numel() * t.element_size() for t in tensors)


class Watch:
    """Counts what DeepSpeed asks of torch.distributed; made before DeepSpeed takes its references."""

    def __init__(self):
        self.calls, self.on = defaultdict(lambda: [0, 0]), False
        known = {name: how for name, how in WATCHED.items() if hasattr(distributed, name)}
        for name, (kind, position) in known.items():
            setattr(distributed, name, self.wrap(getattr(distributed, name), kind, position))

    def wrap(self, function, kind, position):
        @wraps(function)
        def watched(*arguments, **options):
            if not self.on or distributed.get_world_size(options.get("group")) == 1:
                return function(*arguments, **options)  # a group of one sends nothing
            whole = arguments[position] if len(arguments) > position else self.named(kind, options)
            self.calls[kind][0] += 1
            self.calls[kind][1] += size(whole)
            self.on = False  # some of these call one another
            try:
                return function(*arguments, **options)
            finally:
                self.on = True

        return watched

    @staticmethod
    def named(kind, options):
        """The whole tensor: what is scattered goes in, what is gathered comes out."""
        come_out = ("tensor", "output_tensor", "output", "tensor_list")
        names = ("input",) if kind == "reduce_scatter" else come_out
        return next(options[name] for name in names if name in options)


def held_bytes():
    """Bytes of all tensors alive in Python, storages counted once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.layout is torch.strided:
            storage = thing.untyped_storage()
            with suppress(RuntimeError):  # the compiler's stand-ins for tensors have none
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def observe(spec, watch, joined):
    spec = training.resolve(spec)
    if spec.framework == "deepspeed" or not joined:
        training.join(spec, "same")
    torch.manual_seed(spec.seed)
    before = held_bytes()
    compiled = device.compilations()
    job = training.build(spec, torch.device("cpu"))
    batches = job.batches()
    losses = [
        float(job.window(batches)) for _ in range(2)
    ]  # after these ZeRO-3 knows the order of the weights
    held = held_bytes() - before
    watch.calls.clear()
    watch.on = True
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses.append(float(job.window(batches)))
    watch.on = False
    loss = torch.tensor(losses)
    distributed.all_reduce(loss)
    engine = getattr(job, "engine", None)
    optimizer = getattr(engine, "optimizer", None)
    offloaded = getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False)
    pipeline = hasattr(engine, "train_batch")  # it has no forward pass of its own
    found = {
        "collectives": dict(watch.calls),
        "kernels": {event.key: event.count for event in profile.events().key_averages()},
        "held_bytes": held,
        "saved_bytes": None if pipeline else saved_bytes(engine or job.model, *next(batches)),
        "threads": torch.get_num_threads(),
        "losses": (loss / distributed.get_world_size()).tolist(),
        "compiled_frames": device.compilations() - compiled,
        "offloaded": bool(offloaded),
    }
    if engine is not None:
        engine.destroy()
    return found


def saved_bytes(model, tokens, targets):
    """Bytes that a forward pass keeps for the backward pass, as autograd asks for them."""
    saved = []

    def keep(tensor):
        saved.append(size(tensor))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, targets)
    return sum(saved)


def main():
    cases, results = Path(sys.argv[1]), Path(sys.argv[2])
    watch, found = Watch(), []
    gc.freeze()  # the libraries' own objects need no looking through
    for case in json.loads(cases.read_text()):
        found.append(observe(TrialSpec.model_validate(case), watch, bool(found)))
    if distributed.get_rank() == 0:
        results.write_text(json.dumps(found))
    training.leave()


if __name__ == "__main__":
    main()
