"""Logs of DeepSpeed's launcher and engine, 0.4 to 0.19: its configuration and its throughput timer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers import deepspeed_config
from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.lines import counts, json_object, positive, real, unprefixed
from pretune.datasets.importers.runlog import LogReader, Record
from pretune.datasets.trial import Status

# "epoch=0/micro_step=40/global_step=10, ..." since 0.5.9; "0/20, ..." (epoch/step) before
_TIMER = re.compile(
    r".*?(?:global_step=(\d{1,12})|\] \d+/(\d{1,12})), "
    r"RunningAvgSamplesPerSec=([^,\s]+), CurrSamplesPerSec=([^,\s]+)(.*)$"
)
_PIPELINE = re.compile(
    r".*?steps: (\d{1,12}) loss: (\S+).*? iter time \(s\): ([\d.]+)(?: samples/sec: ([\d.]+))?"
)
_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)\s*GB")  # printed as GB, divided by 1024 three times
_LOSS = re.compile(r".*\{'loss': '?([^,'}]+)")  # Hugging Face's Trainer
_BREAKDOWN = re.compile(r".*time \(ms\) \| (.*)$")
# timer of a whole step -> counter; "_microstep" timers are their parts
_TIMERS = {
    "forward": "counter.forward_s",  # until 0.9
    "backward": "counter.backward_s",
    "step": "counter.optimizer_step_s",
    "fwd": "counter.forward_s",  # since 0.9
    "bwd": "counter.backward_s",
}
_VERSION = re.compile(r".*DeepSpeed info: version=([^,\s]+)")
_BEGIN = re.compile(r".*(?:DeepSpeedEngine|DeepSpeedLight) configuration:")
_SETTING = re.compile(r".*print\]\s+(\w+) (?:\.* )?\s*(\S.*?)\s*$")
_JSON = re.compile(r".* json = (\{)\s*$")
_LAUNCHED = re.compile(r".*dist_world_size=(\d+)")
_NODES = re.compile(r".*nnodes=(\d+), num_local_procs=(\d+)")
_PAUSE = re.compile(
    r".*(?:Saving model checkpoint|zero checkpoint saved|Checkpoint \S+ is about to be saved)"
)
_PAIR = re.compile(r"(\w+)=(\w+\(device='(\w+)'|[^\s,]+(?:,\d+)*)")
# as the launcher calls them
_DEVICES = {
    "dist_world_size": "platform.devices",
    "nnodes": "platform.nodes",
    "num_local_procs": "platform.devices_per_node",
}
_SETTINGS = {
    "train_batch_size": "workload.global_batch_sequences",
    "train_micro_batch_size_per_gpu": "knob.micro_batch",
    "gradient_accumulation_steps": "knob.accumulation",
    "world_size": "knob.dp",  # the engine's own: its data-parallel ranks
}
# a setting that starts with True (0.12), or with enabled=True (0.19) -> what it means
_PRECISIONS = {
    "bfloat16_enabled": "bf16",
    "fp16_enabled": "fp16",
    "bfloat16_config": "bf16",
    "float16_config": "fp16",
}
_START_STEP = 2  # from which ThroughputTimer counts
_MAX_CONFIG = 2000  # lines of the configuration's JSON


class DeepSpeedLog(Importer):
    """The timer's running average gives every interval's mean time: (N - 2) x batch / average is the time up
    to step N, by ``ThroughputTimer.avg_samples_per_sec``. What lies outside of steps is not in it."""

    name: ClassVar[str] = "deepspeed"
    reads: ClassVar[str] = "logs of DeepSpeed's launcher and engine"
    fills: ClassVar[tuple[str, ...]] = (
        *deepspeed_config.FILLS,
        *("knob.dp", "platform.devices", "platform.nodes", "platform.devices_per_node", "step_time_s"),
        *("window_times_s", "warmup_windows", "loss_first", "loss_last", "peak_memory_allocated_bytes"),
        *("status", "cause", "samples_per_s", "software.deepspeed", *dict.fromkeys(_TIMERS.values())),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        return _Reader(path, self.name).runs()


class _Reader(LogReader):
    needs = "configuration and no timer line"

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self.launched: dict[str, Any] = {}  # said before the engine is built, of all runs that follow
        self.json: list[str] | None = None
        self._restart()

    def _restart(self) -> None:
        self.step: int | None = None
        self.elapsed = 0.0
        self.paused = False
        self.per_sample: bool | None = None  # whether a record's seconds are a sample's; None before any

    def read(self, number: int, line: str) -> Iterator[Run | SetAside]:
        if self.json is not None:
            self._config(line)
        elif match := _TIMER.match(line):
            yield from self._timer(number, match, line)
        elif match := _PIPELINE.match(line):
            yield from self._pipeline(number, match, line)
        elif _BEGIN.match(line):
            if self.run.records or self.run.failures.found or "knob.dp" in self.run.values:
                yield from self.begin(number, self.launched)
                self._restart()
            self.recognised = True
            self.run.values.setdefault("workload.precision", "fp32")  # what it prints next says otherwise
        elif match := _SETTING.match(line):
            self.run.values |= _setting(match[1], match[2])
        elif _JSON.match(line):
            self.json = ["{"]
        else:
            self._other(line)

    def _other(self, line: str) -> None:
        if match := _VERSION.match(line):
            self.launched["software.deepspeed"] = match[1]
        elif match := _LAUNCHED.match(line):
            self.launched |= counts(_DEVICES, {"dist_world_size": match[1]})
        elif match := _NODES.match(line):
            self.launched |= counts(_DEVICES, {"nnodes": match[1], "num_local_procs": match[2]})
        elif match := _BREAKDOWN.match(line):
            self._breakdown(match[1])
        elif match := _LOSS.match(line):
            self.run.loss(real(match[1]))
        elif _PAUSE.match(line):
            self.paused = True
        else:
            self.run.failures.read(line)
        if not self.run.records:
            self.run.values = self.launched | self.run.values

    def _config(self, line: str) -> None:
        assert self.json is not None
        self.json.append(line)
        if unprefixed(line).rstrip() == "}" or len(self.json) > _MAX_CONFIG:
            config = json_object("\n".join(unprefixed(each) for each in self.json))
            self.json = None
            self.run.values |= deepspeed_config.from_config(config or {})

    def _breakdown(self, text: str) -> None:
        for part in text.split("|"):
            label, _, value = part.partition(":")
            if (column := _TIMERS.get(label.strip())) and (milliseconds := positive(value)):
                self.run.values[column] = milliseconds / 1e3

    def _timer(self, number: int, match: re.Match[str], line: str) -> Iterator[Run | SetAside]:
        self.recognised = True
        step, average, last = int(match[1] or match[2]), positive(match[3]), positive(match[4])
        yield from self._segment(number, step)
        if memory := _MEMORY.search(match[5]):
            self.run.peak("peak_memory_allocated_bytes", (positive(memory[1]) or 0) * 2**30)
        sequences = self.run.values.get("workload.global_batch_sequences")
        if sequences is None:
            self.run.note("states samples per second, and no train_batch_size to tell a step's time by")
        if average is None or last is None or step == self.step or step <= _START_STEP:
            return
        if not self._alike(per_sample=sequences is None):
            return
        elapsed = (step - _START_STEP) * (sequences or 1) / average
        windows = step - (self.step if self.step is not None else _START_STEP)
        seconds = (elapsed - self.elapsed) / windows
        if seconds > 0:
            self.run.record(Record(seconds, windows), line)
        self.step, self.elapsed = step, elapsed

    def _pipeline(self, number: int, match: re.Match[str], line: str) -> Iterator[Run | SetAside]:
        self.recognised = True
        step, seconds = int(match[1]), positive(match[3])
        yield from self._segment(number, step)
        if seconds is not None and step != self.step and self._alike(per_sample=False):
            windows = step - self.step if self.step is not None else 1
            self.run.record(Record(seconds, windows, self.paused), line)
            self.step, self.paused = step, False
        self.run.loss(real(match[2]))

    def _alike(self, per_sample: bool) -> bool:
        """Whether a record of this kind may stand with the run's others; the first one decides."""
        if self.per_sample is None:
            self.per_sample = per_sample
        return self.per_sample == per_sample

    def ended(self) -> Iterator[Run | SetAside]:
        """Time per sample becomes samples per second."""
        for outcome in super().ended():
            if isinstance(outcome, Run) and self.per_sample:
                _per_second(outcome.values)
            yield outcome

    def _segment(self, number: int, step: int) -> Iterator[Run | SetAside]:
        """Another run where the step falls back."""
        if self.step is not None and step < self.step:
            yield from self.begin(number, self.run.stated)
            self._restart()


def _per_second(values: dict[str, Any]) -> None:
    """Turns seconds per sample into samples per second; a run that failed has neither."""
    values.pop("window_times_s", None)
    seconds = values.pop("step_time_s", None)
    if seconds and values["status"] == Status.OK:
        values["samples_per_s"] = 1 / seconds


def _setting(name: str, value: str) -> dict[str, Any]:
    """A line of the configuration as the engine prints it: ``name ..... value``."""
    if name in _SETTINGS:
        return counts(_SETTINGS, {name: value})
    if name in _PRECISIONS and value.startswith(("True", "enabled=True")):
        return {"workload.precision": _PRECISIONS[name]}
    if name == "optimizer_name":
        return deepspeed_config.from_optimizer(value)
    if name == "zero_config" and not value.startswith("{"):
        pairs = {key: {"device": device} if device else text for key, text, device in _PAIR.findall(value)}
        return deepspeed_config.from_zero(pairs)
    if name == "zero_optimization_stage":
        return deepspeed_config.from_zero({"stage": value})
    return {}
