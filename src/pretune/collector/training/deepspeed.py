"""DeepSpeed's engine: ZeRO over dp, and its AutoTP over tp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretune.collector.training.base import Batches, Training, execution, files
from pretune.collector.transformer import Transformer
from pretune.datasets.trial import TrialSpec
from pretune.errors import InputError

# waits for the device at each call, so never in a trial that measures throughput
_COMMS_LOGGER = {"enabled": True, "prof_all": True, "verbose": False, "debug": False}
TAG = "rehearsal"  # of the one checkpoint that is kept
_REFUSALS = (AssertionError, ValueError, NotImplementedError)  # how deepspeed says no to a configuration


class DeepSpeedTraining(Training):
    """``deepspeed.initialize`` with the framework's ``ds_config.json``."""

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        import deepspeed

        super().__init__(spec, device)
        config = settings(spec)
        sharded = spec.knobs.zero_stage == 3
        with refusals():
            with deepspeed.zero.Init(config_dict_or_path=config) if sharded else nullcontext():
                model = Transformer(spec.workload.model, execution(spec.knobs))
            parameters = [p for p in model.parameters() if p.requires_grad]
            self.engine, self.optimizer, *_ = deepspeed.initialize(
                model=model, model_parameters=parameters, config=config
            )
        if spec.knobs.compile:
            self.engine.compile()

    def window(self, batches: Batches) -> Tensor:
        total = torch.zeros((), device=self.device)
        for _ in range(self.accumulation):
            loss = self.engine(*next(batches))
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach()
        return total / self.accumulation

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag=TAG)


def settings(spec: TrialSpec) -> dict[str, Any]:
    """What ``ds_config.json`` says, with the communication logger in a diagnosis."""
    config: dict[str, Any] = json.loads(files(spec)["ds_config.json"])
    return config | {"comms_logger": _COMMS_LOGGER} if spec.purpose == "diagnostic" else config


@contextmanager
def refusals() -> Iterator[None]:
    """Raise what DeepSpeed says of a configuration that it refuses as :class:`InputError`."""
    try:
        yield
    except _REFUSALS as error:
        raise InputError(f"deepspeed refuses the configuration: {error}") from error
