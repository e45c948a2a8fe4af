"""What recording costs: step times of real training with and without it, interleaved, and an A/A control.

    OMP_NUM_THREADS=1 python benchmarks/recorder_overhead.py [--json] [--keep] [--rounds 100] [--loop plain]

A small Llama trains on the CPU in one process, its batch sized for steps of about 20 ms. Each round runs
three blocks of 40 steps in random order: bare, bare again, and recorded (the recorder entered before and
left after, its counters and its watcher as in any trial). The figure of a round is the mean step time of
one block over that of the first bare one, of the steps after the warm-up; given is the median over the
rounds with a 95 % bootstrap interval, on the wall, in processor time of this process, which neighbours
disturb less, and in that of the block's undisturbed steps alone (``quiet_s``, their lower decile: what each
step pays). ``inside`` needs no comparison: the processor time spent in the recorder's own step, over that
of a bare step. What a trial costs once (starting the watcher, writing the record) is apart:
``trial_costs_s``, and the watcher's processor time, ``watcher_cpu_s``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from scipy import stats

from pretune.collector import TrialRecorder
from pretune.collector.integrations.here import model_here, platform_here
from pretune.datasets import Knobs, Measure, Workload

RESULT = Path(__file__).resolve().parent / "results" / "recorder_overhead.json"
STEP_S, LENGTH, VOCABULARY = 0.02, 64, 512
STEPS = 40
MEASURE = Measure(max_seconds=3600)  # more than 40 steps with the warm-up: none waits for the writing
SETTLING = 8  # no trial's warm-up is longer; the watcher starts up meanwhile
KINDS = ("bare", "again", "recorded")
CLOCKS = ("wall_s", "cpu_s", "quiet_s")
LIMIT = 1.005


def of_children_s() -> float:
    """Processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass
class Stopwatch:
    """When each step of a block began, and the last one ended, by the wall's clock and this process's."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    inside_s: float = 0.0  # processor time in the recorder's step so far

    def mark(self) -> None:
        self.wall_s.append(time.perf_counter())
        self.cpu_s.append(time.process_time())

    def around(self, step: Callable[..., bool]) -> Callable[..., bool]:
        """The recorder's step, with what it takes added up."""

        def timed(*rest: Any, **more: Any) -> bool:
            began_s = time.thread_time()
            try:
                return step(*rest, **more)
            finally:
                self.inside_s += time.thread_time() - began_s

        return timed


@dataclass(frozen=True)
class Block:
    """Step times after the settling, the recorder's share of a step, and the whole block with its children.

    The recorder's share is of all steps, the settling too, so that the start of the counters counts.
    """

    wall_s: float
    cpu_s: float
    quiet_s: float
    inside_s: float
    whole_s: float
    children_s: float


class Loop(ABC):
    """A training loop that can be recorded."""

    def __init__(self, model: Any, sequences: int, store: Path) -> None:
        self.model, self.store = model, store
        self.ids = torch.randint(VOCABULARY, (sequences, LENGTH))

    @abstractmethod
    def run(self, recorded: bool, watch: Stopwatch) -> None:
        """Train ``STEPS`` steps, and mark the begin of each and the end of the last."""

    def block(self, recorded: bool) -> Block:
        watch, began_s, children_s = Stopwatch(), time.perf_counter(), of_children_s()
        with patch.object(TrialRecorder, "step", watch.around(TrialRecorder.step)):
            self.run(recorded, watch)
        whole_s, children_s = time.perf_counter() - began_s, of_children_s() - children_s
        assert len(watch.wall_s) == STEPS + 1
        wall_s, cpu_s = (np.diff(marks[SETTLING:]) for marks in (watch.wall_s, watch.cpu_s))
        quiet_s = float(np.quantile(cpu_s, 0.1))
        inside_s = watch.inside_s / STEPS
        return Block(float(wall_s.mean()), float(cpu_s.mean()), quiet_s, inside_s, whole_s, children_s)


class Plain(Loop):
    """torch alone, inside a :class:`TrialRecorder`."""

    def __init__(self, model: Any, sequences: int, store: Path) -> None:
        super().__init__(model, sequences, store)
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.given = {
            "workload": Workload(
                model=model_here(model),
                sequence_length=LENGTH,
                global_batch_tokens=sequences * LENGTH,
                precision="fp32",
            ),
            "platform": platform_here(),
            "knobs": Knobs(micro_batch=sequences),
            "measure": MEASURE,
        }

    def train(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(input_ids=self.ids, labels=self.ids).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def run(self, recorded: bool, watch: Stopwatch) -> None:
        with TrialRecorder(**self.given, store=self.store) if recorded else nullcontext() as recorder:
            for _ in range(STEPS):
                watch.mark()
                loss = self.train()
                if recorder is not None:
                    recorder.step(loss=loss)
            watch.mark()


class HuggingFace(Loop):
    """A Trainer with the callback."""

    def run(self, recorded: bool, watch: Stopwatch) -> None:
        from pretune.collector.integrations.transformers import PretuneCallback

        class Marks(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *_: Any, **given: Any) -> None:
                watch.mark()

            def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                if state.global_step == STEPS:
                    watch.mark()

        arguments = transformers.TrainingArguments(
            output_dir=str(self.store.parent / "trainer"),
            per_device_train_batch_size=len(self.ids),
            max_steps=STEPS,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        examples = [{"input_ids": row, "labels": row} for row in self.ids] * STEPS
        callbacks = [*([PretuneCallback(self.store, measure=MEASURE)] if recorded else []), Marks()]
        trainer = transformers.Trainer(self.model, arguments, train_dataset=examples, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


class DeepSpeed(Loop):
    """A ZeRO-1 engine that is followed."""

    def __init__(self, model: Any, sequences: int, store: Path) -> None:
        super().__init__(model, sequences, store)
        os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
        import deepspeed

        if not torch.distributed.is_initialized():
            alone = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=alone, rank=0, world_size=1)
        config = {
            "train_micro_batch_size_per_gpu": sequences,
            "zero_optimization": {"stage": 1},
            "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        }
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )

    def run(self, recorded: bool, watch: Stopwatch) -> None:
        from pretune.collector.integrations.deepspeed import record

        own = dict(vars(self.engine))
        told = {"store": self.store, "sequence_length": LENGTH, "measure": MEASURE}
        attached = record(self.engine, **told) if recorded else None
        for _ in range(STEPS):
            watch.mark()
            self.engine.backward(self.engine(input_ids=self.ids, labels=self.ids).loss)
            self.engine.step()
        watch.mark()
        if attached is not None:
            attached.end()
            for name in set(vars(self.engine)) - set(own):  # the methods that it was followed by
                delattr(self.engine, name)


LOOPS: dict[str, type[Loop]] = {"plain": Plain, "huggingface": HuggingFace, "deepspeed": DeepSpeed}


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    return transformers.LlamaForCausalLM(config)


def sequences_for(step_s: float, model: Any, store: Path) -> int:
    """How many sequences a step of about that length trains on, from the least processor time of 4 and 12."""

    def seconds(sequences: int) -> float:
        watch = Stopwatch()
        Plain(model, sequences, store).run(recorded=False, watch=watch)
        return min(end - begin for begin, end in pairwise(watch.cpu_s)) / torch.get_num_threads()

    few, many = seconds(4), seconds(12)
    return max(1, round(4 + (step_s - few) / max((many - few) / 8, 1e-5)))


def rounds(loop: Loop, count: int, say: Callable[[str], None]) -> list[dict[str, Block]]:
    """``count`` rounds of the three blocks; one more before imports what writing a record needs."""
    order, found = random.Random(0), []
    for number in range(count + 1):
        turn = order.sample(KINDS, len(KINDS))
        blocks = {kind: loop.block(recorded=kind == "recorded") for kind in turn}
        if number:
            found.append(blocks)
            say(f"{type(loop).__name__} {number}/{count}: bare {1e3 * blocks['bare'].wall_s:.2f} ms")
    return found


def ratio(found: list[dict[str, Block]], kind: str, clock: str) -> dict[str, float]:
    """Median over the rounds of ``kind`` over bare, with its 95 % bootstrap interval."""
    ratios = [getattr(blocks[kind], clock) / getattr(blocks["bare"], clock) for blocks in found]
    interval = stats.bootstrap(
        (ratios,), np.median, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return {"median": float(np.median(ratios)), "low": float(interval.low), "high": float(interval.high)}


def summary(found: list[dict[str, Block]]) -> dict[str, Any]:
    """The ratios by clock, and the raw step times in microseconds, a row per round in the order of KINDS."""
    return {
        "rounds": len(found),
        "step_s": statistics.median(blocks["bare"].wall_s for blocks in found),
        "recorded": {clock: ratio(found, "recorded", clock) for clock in CLOCKS},
        "control": {clock: ratio(found, "again", clock) for clock in CLOCKS},
        "inside": statistics.median(b["recorded"].inside_s / b["bare"].cpu_s for b in found),
        "trial_costs_s": statistics.median(b["recorded"].whole_s - b["bare"].whole_s for b in found),
        "watcher_cpu_s": statistics.median(b["recorded"].children_s for b in found),
        "raw_us": {
            clock: [[round(1e6 * getattr(blocks[kind], clock)) for kind in KINDS] for blocks in found]
            for clock in CLOCKS
        },
        "inside_us": [round(1e6 * blocks["recorded"].inside_s, 1) for blocks in found],
    }


def measure(names: list[str], count: int, say: Callable[[str], None] = print) -> Iterator[tuple[str, Any]]:
    """Each loop's name and summary; step times are those of this machine, ratios are what to compare."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "trials"
        sequences = sequences_for(STEP_S, llama(), store)
        for name in names:
            yield name, summary(rounds(LOOPS[name](llama(), sequences, store), count, say))


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--loop", choices=LOOPS, action="append", help="which, instead of all")
    options.add_argument("--json", action="store_true")
    options.add_argument("--keep", action="store_true", help=f"write all of it to results/{RESULT.name}")
    args = options.parse_args()
    loops: dict[str, Any] = {}
    with redirect_stdout(sys.stderr):  # of the libraries
        for name, found in measure(args.loop or list(LOOPS), args.rounds):
            loops[name] = found
            if args.keep:
                keep(loops)
    if args.json:
        print(json.dumps(loops))
    else:
        report(loops)
    return 0 if all(each["recorded"]["wall_s"]["median"] < LIMIT for each in loops.values()) else 1


def keep(loops: dict[str, Any]) -> None:
    """Each loop as soon as it is measured; other loops' results stay."""
    before = json.loads(RESULT.read_text())["loops"] if RESULT.exists() else {}
    kept = {"cores": os.cpu_count(), "limit": LIMIT, "loops": before | loops}
    RESULT.write_text(json.dumps(kept) + "\n")


def report(loops: dict[str, Any]) -> None:
    for name, each in loops.items():
        print(f"{name}: {1e3 * each['step_s']:.1f} ms a step, {each['inside']:.2%} inside the recorder")
        print(f"  a trial costs {each['trial_costs_s']:.2f} s, its watcher {each['watcher_cpu_s']:.2f} s")
        for kind in ("recorded", "control"):
            for clock, of in each[kind].items():
                print(f"  {kind:<9}{clock:<8}{of['median']:.4f} ({of['low']:.4f} to {of['high']:.4f})")


if __name__ == "__main__":
    sys.exit(main())
