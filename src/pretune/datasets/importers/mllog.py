"""MLPerf Training results: ``:::MLLOG`` lines of JSON, of the rounds 2.0 to 5.1."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.lines import counts, json_object, numbered, real, whole
from pretune.datasets.importers.runlog import Failure, Record, RunLog, batch
from pretune.datasets.trial import Status
from pretune.errors import InputError

_EVENT = re.compile(r".*?:::MLLOG\s+(\{.*)$")
_SYSTEM = re.compile(r".*?:::SYSJSON\s+(\{.*)$")  # the submission's description of its system; NVIDIA's logs
# where an event says how far the run is, by round: "samples_count" since 4.0, "epoch_num" before
_POSITIONS = ("samples_count", "epoch_num")
_IN_TOKENS = frozenset({"gpt3"})  # benchmarks whose epoch_num counts tokens, else sequences
# event -> column, where the value is a count
_COUNTS = {
    "global_batch_size": "workload.global_batch_sequences",
    "max_sequence_length": "workload.sequence_length",
    "gradient_accumulation_steps": "knob.accumulation",
    "micro_batch_size": "knob.micro_batch",
    "tensor_parallelism": "knob.tp",
    "pipeline_parallelism": "knob.pp",
    "context_parallelism": "knob.cp",
}
_TEXTS = {"submission_benchmark": "model.name", "submission_platform": "software.mlperf_platform"}
_AT_ONCE_MS = 100  # between two blocks: too little for an evaluation
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}
# key of the system's description -> column
_SYSTEM_COUNTS = {
    "number_of_nodes": "platform.nodes",
    "accelerators_per_node": "platform.devices_per_node",
}
_SYSTEM_TEXTS = {
    "system_name": "platform.name",
    "accelerator_model_name": "accelerator.name",
    "framework": "software.framework",
}
_LIBRARIES = {"cuda_version": "cuda", "nccl_version": "nccl", "cudnn_version": "cudnn"}


class MLLog(Importer):
    """A window's time is its block's, between ``block_start`` and ``block_stop``, over the steps in it.

    What passes between ``eval_start`` and ``eval_stop`` is taken off. Where evaluations are neither timed so
    nor lie between the blocks, a note says that they are in the figure. Warm-up lies before ``run_start`` by
    MLPerf's rules, so that only a first block slower than the others counts as more of it. Ranks may repeat
    what another one has said. The hardware comes from a ``:::SYSJSON`` line, or from ``systems/<name>.json``
    beside the ``results`` folder of a submission.
    """

    name: ClassVar[str] = "mlperf"
    reads: ClassVar[str] = "MLPerf's `:::MLLOG` results"
    fills: ClassVar[tuple[str, ...]] = (
        *_COUNTS.values(),
        *_TEXTS.values(),
        *_SYSTEM_COUNTS.values(),
        *_SYSTEM_TEXTS.values(),
        *(f"software.{library}" for library in _LIBRARIES.values()),
        *("platform.devices", "workload.global_batch_tokens", "workload.optimizer", "step_time_s"),
        *("window_times_s", "warmup_windows", "tokens_per_s", "loss_first", "loss_last", "status", "cause"),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        reader = _Reader(path, self.name)
        for number, line in numbered(path, tail=True):
            if match := _EVENT.match(line):
                event = json_object(match[1])
                if event is None:
                    yield SetAside(str(path), number, "is no whole JSON object; left out")
                elif isinstance(event.get("key"), str):
                    yield from reader.read(number, event, match[1])
            elif match := _SYSTEM.match(line):
                reader.run.values |= _described(json_object(match[1]) or {})
            else:
                reader.run.failures.read(line)
        yield from reader.ended()
        if not reader.recognised:
            raise InputError(f"{path}: is no MLPerf log (it has no :::MLLOG line)")


class _Reader:
    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.recognised = False
        self._begin(1)

    def _begin(self, number: int) -> None:
        self.run = RunLog(number, _beside(self.path), warmup=False)
        self.position = 0.0  # sequences at the end of the last whole block
        self.started: float | None = None  # ms, when the open block began
        self.by_run = False  # whether nothing but run_start says so
        self.joined = False  # whether another block began before it stopped
        self.took: float | None = None  # ms, of a block whose sequences are not known yet
        self.evaluation: float | None = None  # ms, when the open evaluation began
        self.evaluated = 0.0  # ms of evaluation in the open block
        self.block_ended = math.inf  # ms
        self.apart = self.scored = False  # whether evaluations are timed; whether there are any
        self.rate: float | None = None  # sequences per second, as the last tracked_stats has it
        self.stopped = False

    def read(self, number: int, event: dict[str, Any], text: str) -> Iterator[Run | SetAside]:
        self.recognised = True
        key, value = event["key"], event.get("value")
        metadata = event.get("metadata") if isinstance(event.get("metadata"), dict) else {}
        assert isinstance(metadata, dict)
        if self.stopped and key in ("cache_clear", "init_start", "submission_benchmark", "run_start"):
            yield from self.ended()
            self._begin(number)
        self._header(key, value)
        self._clock(key, _figure(event.get("time_ms")))
        self._moved(key, metadata, text)
        if key == "tracked_stats" and isinstance(value, dict):
            self.rate = _figure(value.get("throughput")) or self.rate
        elif key == "train_loss":
            self.run.loss(real(str(value)))
        elif key == "run_stop":
            self._stop(number, str(metadata.get("status")))

    def ended(self) -> Iterator[Run | SetAside]:
        if self.recognised and not self.stopped:
            self.run.note("has no run_stop: cut off, or still running")
        if self.scored and not self.apart and self.run.records:
            self.run.note("does not time its evaluations; they are in the step time")
        outcome = self.run.finish(self.path, self.name)
        if outcome is not None:
            yield outcome
        elif self.recognised:
            yield SetAside(str(self.path), self.run.line, "has no whole block between run_start and run_stop")

    def _header(self, key: str, value: Any) -> None:
        if key in _COUNTS and (count := whole(str(value))) is not None:
            self.run.values[_COUNTS[key]] = count
            length = self.run.values.get("workload.sequence_length")
            if length and (sequences := self.run.values.get("workload.global_batch_sequences")):
                self.run.values |= batch(sequences, length)
        elif key in _TEXTS and isinstance(value, str) and value:
            self.run.values[_TEXTS[key]] = value
        elif key == "opt_name" and isinstance(value, str) and value in _OPTIMIZERS:
            self.run.values["workload.optimizer"] = _OPTIMIZERS[value]

    def _clock(self, key: str, now: float | None) -> None:
        if now is None:
            return
        self._evaluation(key, now)
        if key in ("run_start", "block_start") and (self.started is None or self.by_run):
            self.started, self.took, self.evaluated = now, None, 0.0
            self.by_run, self.joined = key == "run_start", False
        elif key == "block_start":
            self.joined = True
        elif key in ("block_stop", "epoch_stop", "run_stop") and self.started is not None:
            self.took, self.started = now - self.started - self.evaluated, None
            self.block_ended = now

    def _evaluation(self, key: str, now: float) -> None:
        if key == "eval_start":
            self.evaluation = now
        elif key == "eval_stop" and self.evaluation is not None:
            if self.started is not None:  # what of it lies in the block
                self.evaluated += max(now - max(self.evaluation, self.started), 0.0)
            self.evaluation, self.apart = None, True
        elif key == "eval_accuracy":
            self.scored = True
        elif key == "block_start" and now - self.block_ended > _AT_ONCE_MS:
            self.apart = True

    def _moved(self, key: str, metadata: dict[str, Any], text: str) -> None:
        """A block is whole once the sequences up to its end are known: some logs say so at its evaluation.

        A block that begins before the last one has stopped is one with it; how far both went its own end does
        not say.
        """
        sequences = self.run.values.get("workload.global_batch_sequences")
        position = next((_figure(metadata[name]) for name in _POSITIONS if name in metadata), None)
        if self.took is None or position is None or not sequences or (self.joined and key == "block_stop"):
            return
        if self.run.values.get("model.name") in _IN_TOKENS and "epoch_num" in metadata:
            length = self.run.values.get("workload.sequence_length")
            position = position / length if length else None
        if position is None or position <= self.position:
            return
        steps = (position - self.position) / sequences
        if steps >= 1 and self.took > 0:
            rates = self._rates()
            self.run.record(Record(self.took / 1e3 / steps, round(steps), False, rates), text)
        self.position, self.took = position, None

    def _rates(self) -> dict[str, float]:
        length = self.run.values.get("workload.sequence_length")
        return {"tokens_per_s": self.rate * length} if self.rate and length else {}

    def _stop(self, number: int, status: str) -> None:
        self.stopped = True
        if status != "success" and self.run.failures.found is None:
            self.run.failures.found = Failure(Status.CRASH, f"run_stop with status {status}")


def _figure(value: Any) -> float | None:
    """A time or a count of an event: some write numbers as text, and a bool is none."""
    number = None if isinstance(value, bool) or value is None else real(str(value))
    return number if number is not None and 0 <= number < 1e18 else None


def _beside(path: Path) -> dict[str, Any]:
    """What ``systems/<system>.json`` says of ``results/<system>/<benchmark>/<file>`` beside it."""
    folders = path.resolve().parents
    if len(folders) < 4 or folders[2].name != "results":
        return {}
    try:
        file = folders[3] / "systems" / f"{folders[1].name}.json"
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return _described(json_object(text) or {})


def _described(system: dict[str, Any]) -> dict[str, Any]:
    values = counts(_SYSTEM_COUNTS, system)
    if len(values) == len(_SYSTEM_COUNTS):
        values["platform.devices"] = math.prod(values.values())
    for key, column in _SYSTEM_TEXTS.items():
        if isinstance(text := system.get(key), str) and text.strip():
            values[column] = text.strip()
    if name := values.pop("platform.name", None):  # here a system's name is prose, in the store a folder's
        values["platform.name"] = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")
    stack = system.get("other_software_stack")
    for key, library in _LIBRARIES.items():
        if isinstance(stack, dict) and stack.get(key):
            values[f"software.{library}"] = str(stack[key])
    return values
