"""A DeepSpeed engine: ``record(engine, store="trials", sequence_length=4096)`` after ``initialize``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from pretune.collector.integrations.attached import Attached
from pretune.collector.integrations.here import model_here, recorder_here
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.trial import Measure
from pretune.datasets.workload import ModelSpec

# knob -> the engine's own answer; a version that lacks one leaves it unknown
_KNOBS = {
    "micro_batch": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
    "zero_stage": "zero_optimization_stage",
    "reduce_bucket_size": "zero_reduce_bucket_size",
    "allgather_bucket_size": "zero_allgather_bucket_size",
    "overlap_comm": "zero_overlap_comm",
    "reduce_scatter": "zero_reduce_scatter",
    "allgather_partitions": "zero_allgather_partitions",
    "contiguous_gradients": "zero_contiguous_gradients",
}


def record(
    engine: Any,
    *,
    store: str | Path,
    sequence_length: int,
    model: ModelSpec | None = None,
    platform: Platform | str | None = None,
    knobs: Knobs | None = None,
    measure: Measure | None = None,
) -> Attached:
    """Record one trial of the training that ``engine`` runs, on every rank alike.

    Its ``step`` (or a pipeline engine's ``train_batch``) is followed at the ends of accumulation windows, and
    ``save_checkpoint`` is no part of a step. ``knobs`` adds to those that the engine tells. Evaluations go
    into ``attached.pause()`` and ``.resume()``.
    """
    attached = Attached()
    attached.begin(
        lambda: recorder_here(
            _workload(engine, sequence_length, model_here(engine.module, model)),
            _knobs(engine) | (knobs or Knobs()).settings(),
            store=store,
            framework="deepspeed",
            platform=platform,
            measure=measure,
        )
    )
    if attached.recorder is not None:
        _follow(engine, attached)
    return attached


def _workload(engine: Any, sequence_length: int, model: ModelSpec) -> dict[str, Any]:
    optimizer = (engine.optimizer_name() or "adamw").lower()
    return {
        "model": model,
        "sequence_length": sequence_length,
        "global_batch_tokens": engine.train_batch_size() * sequence_length,
        "precision": "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32",
        "optimizer": "adamw" if optimizer == "adam" else optimizer,  # DeepSpeed's Adam decays as AdamW
    }


def _knobs(engine: Any) -> dict[str, Any]:
    told = {name: getattr(engine, ask)() for name, ask in _KNOBS.items() if hasattr(engine, ask)}
    return told | {"dp": engine.dp_world_size}


def _follow(engine: Any, attached: Attached) -> None:
    """Wrap the engine's own methods, on this engine alone."""
    said: dict[str, Any] = {}

    def backward(original: Callable[..., Any], loss: Any, *rest: Any, **more: Any) -> Any:
        said["loss"] = loss.detach() if hasattr(loss, "detach") else None
        return original(loss, *rest, **more)

    def step(original: Callable[..., Any], *rest: Any, **more: Any) -> Any:
        whole = engine.is_gradient_accumulation_boundary()
        done = original(*rest, **more)
        if whole:
            attached.step(said.get("loss"))
        return done

    def train_batch(original: Callable[..., Any], *rest: Any, **more: Any) -> Any:
        loss = original(*rest, **more)
        attached.step(loss)
        return loss

    def save_checkpoint(original: Callable[..., Any], *rest: Any, **more: Any) -> Any:
        attached.pause()
        try:
            return original(*rest, **more)
        finally:
            attached.resume()

    pipeline = [train_batch] if hasattr(engine, "train_batch") else [backward, step]
    for around in (*pipeline, save_checkpoint):
        setattr(engine, around.__name__, _wrapped(getattr(engine, around.__name__), around))


def _wrapped(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def called(*rest: Any, **more: Any) -> Any:
        return around(original, *rest, **more)

    return called
