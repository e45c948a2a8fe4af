"""``trainer_state.json`` of Hugging Face's Trainer, with the config.json and the model card beside it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets import schema
from pretune.datasets.importers import deepspeed_config
from pretune.datasets.importers.base import Importer, Run, SetAside, digest
from pretune.datasets.importers.lines import positive, whole
from pretune.datasets.importers.runlog import Record, Steady
from pretune.datasets.trial import Status
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError

SUMMARIES = ("train_results.json", "all_results.json")  # of `trainer.save_metrics`, with the summary's keys
RATE_ROUNDED, TIME_ROUNDED = 0.0005, 0.00005  # half of the last digit that Trainer states
_PAUSES = ("eval_runtime", "predict_runtime", "test_runtime")
_CARD = re.compile(r"- ([a-z_]+): (.+?)\s*$")  # of "Training hyperparameters" in a model card
_CARD_COUNTS = {
    "num_devices": "platform.devices",
    "gradient_accumulation_steps": "knob.accumulation",
    "total_train_batch_size": "workload.global_batch_sequences",
}


class TrainerState(Importer):
    """The state that ``trainer.save_state()`` leaves at the end of a training; each ``train()`` is a run.

    A step's time is the summary's ``train_runtime`` without the evaluations that the log times, over the
    steps that were really made (Trainer divides by ``max_steps``, also after an early stop); saving and
    starting up stay in it. With ``include_num_input_tokens_seen`` every log states the time so far, and then
    it is the steady windows between logs. The global batch is what samples and steps per second state
    together, where they leave only one multiple of the batch per device. ``training_args.bin`` is a pickle
    and never opened.
    """

    name: ClassVar[str] = "trainer"
    reads: ClassVar[str] = "`trainer_state.json` of Hugging Face's Trainer, and the configurations beside it"
    pattern: ClassVar[str] = "trainer_state.json"
    fills: ClassVar[tuple[str, ...]] = (
        *(f"model.{name}" for name in ModelSpec.model_fields),
        *("workload.sequence_length", "workload.global_batch_tokens", "workload.precision"),
        *("step_time_s", "window_times_s", "warmup_windows", "wall_s", "loss_first", "loss_last", "status"),
        *("cause", "knob.micro_batch", "counter.total_flos", *_CARD_COUNTS.values(), *deepspeed_config.FILLS),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        state = _object(path)
        if isinstance(state, SetAside):
            yield state
            return
        log = state.get("log_history")
        if not isinstance(log, list):
            raise InputError(f"{path}: has no log_history; give the trainer_state.json of a Trainer")
        log = [entry for entry in log if isinstance(entry, dict)]
        beside, notes = _beside(path)
        parts = _trainings(log) or _trainings([*log, *_summary_beside(path)])
        if not parts:
            yield SetAside(str(path), None, "states no times (a checkpoint's?); give the one at a run's end")
        done = 0
        for part in parts:
            yield _run(path, state, part, done, beside, list(notes))
            done = _step(part[-1]) or done


def _trainings(log: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The entries of each training, its summary last (the only one with ``train_loss``)."""
    parts: list[list[dict[str, Any]]] = [[]]
    for entry in log:
        parts[-1].append(entry)
        if "train_loss" in entry and "train_runtime" in entry:
            parts.append([])
    return parts[:-1]


def _run(
    path: Path,
    state: dict[str, Any],
    log: list[dict[str, Any]],
    done: int,
    beside: dict[str, Any],
    notes: list,
) -> Run | SetAside:
    summary = log[-1]
    steps = (_step(summary) or whole(str(state.get("global_step"))) or 0) - done
    runtime = positive(str(summary.get("train_runtime")))
    if steps <= 0 or runtime is None:
        return SetAside(str(path), None, "its summary states no steps or no train_runtime above 0")
    told = json.dumps([summary, log[0]], sort_keys=True)
    key = f"trainer-{digest(told)}"
    values = beside | _batch(state, summary, runtime)
    values |= _tokens(log, values.get("workload.global_batch_sequences"))
    values |= {"wall_s": runtime, **_losses(log)}
    if flos := positive(str(summary.get("total_flos"))):
        values["counter.total_flos"] = flos
    if "cause" not in values:
        timed = _windows(log, done) or _overall(log, runtime, steps, notes)
        if not timed:
            return SetAside(
                str(path), None, "its evaluations take longer than its train_runtime; one is wrong"
            )
        values |= timed | {"status": str(Status.OK)}
    return Run(None, key, values, notes)


def _overall(log: list[dict[str, Any]], runtime: float, steps: int, notes: list[str]) -> dict[str, Any]:
    """A step's mean time, without the evaluations that were timed; {} when nothing is left."""
    paused = sum(positive(str(e.get(name))) or 0.0 for e in log for name in _PAUSES)
    off = f"; {paused:.6g} s of evaluations were taken off" if paused else ""
    notes.append(f"step_time_s has starting up and saving in it{off}")
    return {"step_time_s": (runtime - paused) / steps} if runtime > paused else {}


def _windows(log: list[dict[str, Any]], done: int) -> dict[str, Any]:
    """The steady windows between logs that state the time so far; {} when there are too few."""
    steady, at, step, paused = Steady(), 0.0, done, False
    for entry in log[:-1]:
        paused = paused or any(name in entry for name in _PAUSES)
        now, reached = positive(str(entry.get("train_runtime"))), _step(entry)
        if "loss" not in entry or now is None or reached is None or reached <= step or now <= at:
            continue
        steady.add(Record((now - at) / (reached - step), reached - step, paused))
        at, step, paused = now, reached, False
    return steady.values() if len(steady.kept) > 2 else {}


def _batch(state: dict[str, Any], summary: dict[str, Any], runtime: float) -> dict[str, Any]:
    """The batch per device, and the global batch from samples and steps per second, if it is the only one."""
    micro = whole(str(state.get("train_batch_size")))
    values = {"knob.micro_batch": micro} if micro else {}
    rate, most = positive(str(summary.get("train_samples_per_second"))), whole(str(state.get("max_steps")))
    if not (micro and rate and most):
        return values
    sequences = rate * runtime / most
    epochs = positive(str(state.get("num_train_epochs"))) or 0.0
    short = min(epochs / most, 1.0)  # each epoch's last batch may be smaller
    slack = RATE_ROUNDED / rate + TIME_ROUNDED / runtime
    low, high = sequences * (1 - slack), sequences * (1 + slack) / max(1 - short, 1e-9)
    fitting = range(math.ceil(low / micro - 1e-9), math.floor(high / micro + 1e-9) + 1)
    if len(fitting) == 1 and fitting[0] > 0:
        values["workload.global_batch_sequences"] = fitting[0] * micro
    return values


def _tokens(log: list[dict[str, Any]], sequences: int | None) -> dict[str, Any]:
    """Tokens of a batch, where every step had as many, and so the sequence length."""
    seen = [(s, n) for e in log if (s := _step(e)) and (n := whole(str(e.get("num_input_tokens_seen"))))]
    each = {tokens / step for step, tokens in seen}
    if len(seen) < 2 or len(each) != 1 or not (tokens := each.pop()).is_integer():
        return {}
    values = {"workload.global_batch_tokens": int(tokens)}
    if sequences and not tokens % sequences:
        values["workload.sequence_length"] = int(tokens) // sequences
    return values


def _losses(log: list[dict[str, Any]]) -> dict[str, Any]:
    losses = [
        e["loss"] for e in log if isinstance(e.get("loss"), (int, float)) and not isinstance(e["loss"], bool)
    ]
    if not losses:
        return {}
    values: dict[str, Any] = {"loss_first": losses[0], "loss_last": losses[-1]}
    finite: dict[str, Any] = {name: float(loss) for name, loss in values.items() if math.isfinite(loss)}
    if not math.isfinite(losses[-1]):
        finite |= {"status": str(Status.DIVERGED), "cause": f"the last loss is {losses[-1]}"}
    return finite


def _beside(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What the files beside, or one folder above, state: the model, DeepSpeed's settings, the model card."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    if file := _near(path, "config.json"):
        try:
            shape = schema.flatten(ModelSpec.from_huggingface(file))
            values |= {f"model.{name}": value for name, value in shape.items()}
        except InputError as error:
            notes.append(f"its model is not read: {error}")
    if file := _near(path, "ds_config.json"):
        config = _object(file)
        values |= deepspeed_config.from_config(config) if isinstance(config, dict) else {}
    if file := _near(path, "README.md"):
        values |= _card(file)
    return values, notes


def _card(file: Path) -> dict[str, Any]:
    """The hyperparameters that Trainer writes into a model card."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError:
        return {}
    told = {match[1]: match[2] for line in lines if (match := _CARD.match(line)) and line.endswith("\n")}
    return {column: n for name, column in _CARD_COUNTS.items() if (n := whole(told.get(name))) is not None}


def _summary_beside(path: Path) -> list[dict[str, Any]]:
    for name in SUMMARIES:
        summary = _object(path.parent / name)
        if isinstance(summary, dict):
            return [summary]
    return []


def _near(path: Path, name: str) -> Path | None:
    places = (path.parent / name, path.parent.parent / name)
    return next((place for place in places if place.is_file()), None)


def _step(entry: dict[str, Any]) -> int | None:
    return whole(str(entry.get("step")))


def _object(path: Path) -> dict[str, Any] | SetAside:
    """The JSON object in a file, or why there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return SetAside(str(path), None, f"cannot be read ({error.strerror or error})")
    except ValueError as error:
        line = getattr(error, "lineno", None)
        return SetAside(str(path), line, "is no whole JSON (cut off, or still being written); copy it again")
    except RecursionError:
        return SetAside(str(path), None, "is nested too deep to be a Trainer's; give trainer_state.json")
    return value if isinstance(value, dict) else SetAside(str(path), 1, "holds no JSON object")
