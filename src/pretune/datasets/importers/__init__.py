"""Foreign history as trials: one file per format, behind one interface."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pretune.errors import InputError

if TYPE_CHECKING:
    from pretune.datasets.importers.base import Importer

FORMATS = {
    "csv": "table:Table",
    "deepspeed": "deepspeed_log:DeepSpeedLog",
    "deepspeed-autotuning": "deepspeed_autotuning:DeepSpeedAutotuning",
    "kernel-tuner": "kernel_tuner:KernelTuner",
    "megatron": "megatron:MegatronLog",
    "megatron-bridge": "megatron_bridge:MegatronBridgeTable",
    "mlflow": "mlflow_runs:MLflowRuns",
    "mlperf": "mllog:MLLog",
    "mosaic": "mosaic:MosaicTable",
    "nanotron": "nanotron:Nanotron",
    "nemo": "nemo:NeMoLog",
    "torchtitan": "torchtitan:TorchTitanLog",
    "trainer": "trainer_state:TrainerState",
    "wandb": "wandb:WandbExport",
}


def importer(name: str) -> type[Importer]:
    """The importer of a format; raises :class:`InputError` that lists the formats."""
    if name not in FORMATS:
        raise InputError(f"import: {name!r} is no format; known: {', '.join(FORMATS)}")
    module, kind = FORMATS[name].split(":")
    found: type[Importer] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found
