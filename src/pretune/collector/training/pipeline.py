"""DeepSpeed's pipeline engine: one Transformer a stage, its layers split over tp where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pretune.collector.training.base import Batches, Training, execution
from pretune.collector.training.deepspeed import TAG, refusals, settings
from pretune.collector.transformer import Layer, Transformer, cross_entropy
from pretune.datasets.trial import TrialSpec


class DeepSpeedPipeline(Training):
    """``PipelineModule`` and ``PipelineEngine.train_batch``: micro batches run 1F1B through the stages."""

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        import deepspeed
        from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

        super().__init__(spec, device)
        knobs = spec.knobs
        topology = PipeModelDataParallelTopology(num_pp=knobs.pp, num_mp=knobs.tp, num_dp=knobs.dp)
        with refusals():
            module = deepspeed.PipelineModule(
                _stages(spec), topology=topology, loss_fn=cross_entropy, partition_method="uniform"
            )
            (stage,) = (each for each in module.modules() if isinstance(each, Transformer))
            if (knobs.tp or 1) > 1:
                shard(stage, module.mpu().get_slice_parallel_group())
            count_once(stage, module.mpu().get_slice_parallel_rank())
            if knobs.compile:
                stage.compile()
            self.engine, self.optimizer, *_ = deepspeed.initialize(model=module, config=settings(spec))

    def window(self, batches: Batches) -> Tensor:
        return cast(Tensor, self.engine.train_batch(batches))

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag=TAG)


def _stages(spec: TrialSpec) -> list[Any]:
    """One spec a stage. Tied embeddings are in the first and in the last, which DeepSpeed keeps equal."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    model, run, count = spec.workload.model, execution(spec.knobs), spec.knobs.pp or 1
    stages = [LayerSpec(Transformer, model, run, stage, count) for stage in range(count)]
    if model.tied_embeddings:
        for stage in (0, -1):
            made = stages[stage]
            stages[stage] = TiedLayerSpec(
                "embeddings", Transformer, *made.module_args, tied_weight_attr="tokens.weight"
            )
    return stages


def shard(stage: Transformer, group: Any) -> None:
    """Split the layers over the ranks of ``group``, as AutoTP does; it knows no pipeline itself."""
    from deepspeed.module_inject import set_autotp_mode
    from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer

    set_autotp_mode(training=True)
    for layer in cast("list[Layer]", stage.layers):
        for part, names, kind in (
            (layer.attention, ("qkv",), LinearLayer),
            (layer.mlp, ("up", "gate"), LinearLayer),
            (layer.attention, ("out",), LinearAllreduce),
            (layer.mlp, ("down",), LinearAllreduce),
        ):
            for name in names:
                if getattr(part, name) is not None:
                    setattr(part, name, kind(getattr(part, name), group))
    if stage.last and not stage.spec.tied_embeddings:
        stage.head = LinearLayer(stage.head, group, gather_output=True)


def count_once(stage: Transformer, tp_rank: int) -> None:
    """Mark which weights DeepSpeed's norm of all gradients is to count on this rank.

    Unmarked, what it counts depends on the optimizer: the first stage alone, or all but a stage of which
    one weight is tied.
    """
    twin = stage.tokens.weight if stage.last and stage.spec.tied_embeddings else None
    for weight in stage.parameters():
        weight.ds_pipe_replicated = weight is twin  # type: ignore[attr-defined]
        weight.model_parallel = tp_rank == 0 and weight is not twin  # type: ignore[attr-defined]
