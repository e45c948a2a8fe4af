"""Lightning: ``Trainer(callbacks=[PretuneCallback(store="trials", model=..., sequence_length=4096)])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the same library under its older name
    from pytorch_lightning import Callback

from pretune.collector.integrations.attached import Attached
from pretune.collector.integrations.here import optimizer_here, recorder_here
from pretune.collector.recorder import TrialRecorder
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.trial import Measure
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError


class PretuneCallback(Callback):  # type: ignore[misc]  # lightning has no types here
    """Records one trial of a fit. Validation and checkpoints are no part of a step.

    ``micro_batch`` is the training loader's batch size unless given.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        model: ModelSpec,
        sequence_length: int,
        platform: Platform | str | None = None,
        micro_batch: int | None = None,
        knobs: Knobs | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.store, self.model, self.sequence_length = store, model, sequence_length
        self.platform, self.micro_batch = platform, micro_batch
        self.knobs, self.measure = knobs or Knobs(), measure
        self._attached, self._steps = Attached(), 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._attached.begin(lambda: self._recorder(trainer))
        # whole, since hooks see neither the setting up of a validation nor the end of a checkpoint
        validation = trainer.fit_loop.epoch_loop.val_loop
        validation.run = self._attached.outside(validation.run)
        trainer.save_checkpoint = self._attached.outside(trainer.save_checkpoint)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        if trainer.global_step > self._steps:  # an optimizer step, not a part of its window
            self._steps = trainer.global_step
            self._attached.step(outputs["loss"] if isinstance(outputs, dict) else outputs)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._attached.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._attached.end(exception)

    def _recorder(self, trainer: Any) -> TrialRecorder:
        micro = self.micro_batch or getattr(trainer.train_dataloader, "batch_size", None)
        if not micro:
            raise InputError("recorder: micro_batch: the training loader has no batch_size; give it")
        accumulation = trainer.accumulate_grad_batches
        workload = {
            "model": self.model,
            "sequence_length": self.sequence_length,
            "global_batch_tokens": micro * accumulation * trainer.world_size * self.sequence_length,
            "precision": _precision(str(trainer.precision)),
            "optimizer": optimizer_here(type(trainer.optimizers[0]).__name__),
        }
        told = {"micro_batch": micro, "accumulation": accumulation, "dp": trainer.world_size}
        return recorder_here(
            workload,
            told | self.knobs.settings(),
            store=self.store,
            framework="lightning",
            platform=self.platform,
            measure=self.measure,
        )


def _precision(name: str) -> str:
    """``bf16-mixed``, ``16-true`` and the like."""
    return {"bf16": "bf16", "16": "fp16", "32": "fp32", "transformer": "fp8"}.get(name.split("-")[0], name)
