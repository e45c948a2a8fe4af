"""FSDP2: every layer's weights sharded over dp, gathered when it runs (``fully_shard``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pretune.collector.training.base import CLIP_NORM, Batches, Training, execution
from pretune.collector.transformer import Execution, Transformer
from pretune.datasets.knobs import Knobs
from pretune.datasets.trial import TrialSpec


class FSDPTraining(Training):
    """``fully_shard`` of each layer, the embeddings, and norm and output, as torchtitan cuts its models.

    Weights and optimizer states are fp32; with precision bf16 they are gathered as bf16. Gradients are
    reduced in fp32 in every micro batch. Under ``dp_replicate`` shards are copied (hybrid sharding).
    """

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        super().__init__(spec, device)
        knobs = spec.knobs
        self.model = Transformer(spec.workload.model, _execution(knobs))
        if knobs.compile:
            for layer in self.model.layers:
                layer.compile()
        _shard(self.model, knobs, _mesh(knobs, device))
        kernel = str(knobs.settings()["optimizer_kernel"])
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=3e-4,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            fused=kernel == "fused",
            foreach=kernel == "foreach",
        )

    def window(self, batches: Batches) -> Tensor:
        total = torch.zeros((), device=self.device)
        for _ in range(self.accumulation):
            loss = self.model(*next(batches)) / self.accumulation
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def save(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)


def _execution(knobs: Knobs) -> Execution:
    """torchtitan calls it selective when every so many layers is recomputed, as a whole."""
    found = execution(knobs)
    if found.checkpointing != "selective":
        return found
    return replace(found, checkpointing="full", every=int(knobs.settings()["selective_every"]))


def _mesh(knobs: Knobs, device: torch.device) -> DeviceMesh:
    """Over ``dp_shard`` ranks, neighbours; in front of it the copies, where there are several."""
    told = knobs.settings()
    shard, copies = int(told["dp_shard"]), int(told["dp_replicate"])
    if copies == 1:
        return init_device_mesh(device.type, (shard,), mesh_dim_names=("dp_shard",))
    return init_device_mesh(device.type, (copies, shard), mesh_dim_names=("dp_replicate", "dp_shard"))


def _shard(model: Transformer, knobs: Knobs, mesh: DeviceMesh) -> None:
    """Units from the inside out; what is in none of them is the whole model's own."""
    half = knobs.precision == "bf16"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    asked = knobs.settings()["reshard_after_forward"]
    # the output is needed first in the backward pass: by default it stays gathered
    drop, drop_last = asked != "never", asked == "always"
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=drop)
    if not model.spec.tied_embeddings:  # a weight of two units would be gathered by either
        embeddings: list[nn.Module] = [each for each in (model.tokens, model.positions) if each is not None]
        fully_shard(embeddings, mesh=mesh, mp_policy=policy, reshard_after_forward=drop)
        fully_shard([model.norm, model.head], mesh=mesh, mp_policy=policy, reshard_after_forward=drop_last)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=drop_last)
