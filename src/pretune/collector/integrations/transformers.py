"""Hugging Face's Trainer: ``trainer.add_callback(PretuneCallback(store="trials"))``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from pretune.collector.integrations.attached import Attached
from pretune.collector.integrations.here import model_here, optimizer_here, recorder_here
from pretune.collector.recorder import TrialRecorder
from pretune.datasets.platform import Platform
from pretune.datasets.trial import Measure
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError


class PretuneCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Records one trial of a Trainer's run; what is not given is read from its arguments and its model.

    ``sequence_length`` is that of the first example unless given: examples are taken to be of one length.
    Evaluations and checkpoints are no part of a step.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        platform: Platform | str | None = None,
        model: ModelSpec | None = None,
        sequence_length: int | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.store, self.measure = store, measure
        self.platform, self.model, self.sequence_length = platform, model, sequence_length
        self._attached, self._undo = Attached(), ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._attached.begin(lambda: self._recorder(args, given))
        self._undo.enter_context(_left_out(self, self._attached))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        said = [entry["loss"] for entry in state.log_history[-1:] if "loss" in entry]
        self._attached.step(said[0] if said else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._undo.close()
        self._attached.end()

    def _recorder(self, args: Any, given: dict[str, Any]) -> TrialRecorder:
        length = self.sequence_length or _length(given.get("train_dataloader"))
        model = given["model"]
        micro, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
        workload = {
            "model": model_here(model, self.model),
            "sequence_length": length,
            "global_batch_tokens": micro * accumulation * args.world_size * length,
            "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
            "optimizer": optimizer_here(str(args.optim)),
        }
        deepspeed = getattr(args, "hf_deepspeed_config", None)
        zero = deepspeed.config.get("zero_optimization", {}) if deepspeed is not None else {}
        knobs = {
            "micro_batch": micro,
            "accumulation": accumulation,
            "dp": args.world_size,
            "zero_stage": zero.get("stage", 0) if deepspeed is not None else None,
            "activation_checkpointing": "full" if args.gradient_checkpointing else "none",
            "attention": getattr(model.config, "_attn_implementation", None),
            "compile": bool(args.torch_compile),
        }
        return recorder_here(
            workload,
            knobs,
            store=self.store,
            framework="transformers" if deepspeed is None else "deepspeed",
            platform=self.platform,
            measure=self.measure,
        )


@contextmanager
def _left_out(callback: TrainerCallback, attached: Attached) -> Iterator[None]:
    """Where the Trainer that has this ``callback`` evaluates or saves between steps, that is no part of them.

    Hooks see no beginning of either, nor the end of a checkpoint, and a callback is not told its Trainer: so
    the class is changed for as long as it trains. Trainers without this callback are as they were.
    """
    original = Trainer._maybe_log_save_evaluate

    @wraps(original)
    def between_steps(trainer: Trainer, *rest: Any, **more: Any) -> Any:
        rare = trainer.control.should_evaluate or trainer.control.should_save
        ours = rare and callback in trainer.callback_handler.callbacks
        return (attached.outside(original) if ours else original)(trainer, *rest, **more)

    Trainer._maybe_log_save_evaluate = between_steps
    try:
        yield
    finally:
        Trainer._maybe_log_save_evaluate = original


def _length(loader: Any) -> int:
    try:
        return len(loader.dataset[0]["input_ids"])
    except (AttributeError, KeyError, TypeError, IndexError, NotImplementedError):
        raise InputError("recorder: sequence_length: the data do not tell; give it") from None
