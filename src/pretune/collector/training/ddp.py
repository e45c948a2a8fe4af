"""Plain PyTorch: replicas under DistributedDataParallel."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from pretune.collector.training.base import CLIP_NORM, Batches, Training, execution, files
from pretune.collector.transformer import Transformer
from pretune.datasets.trial import TrialSpec

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class DDPTraining(Training):
    """DistributedDataParallel; gradients are exchanged in a window's last micro batch only."""

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        super().__init__(spec, device)
        model = Transformer(spec.workload.model, execution(spec.knobs))
        model = model.to(device, _DTYPES[spec.knobs.precision or spec.workload.precision])
        arguments = json.loads(files(spec)["ddp.json"])
        ids = [device.index] if device.type == "cuda" else None
        ddp = nn.parallel.DistributedDataParallel(model, device_ids=ids, **arguments)
        self.model, self.forward = ddp, torch.compile(ddp) if spec.knobs.compile else ddp
        if spec.workload.optimizer == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        else:
            self.optimizer = torch.optim.AdamW(
                model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1
            )

    def window(self, batches: Batches) -> Tensor:
        total = torch.zeros((), device=self.device)
        for micro in range(self.accumulation):
            last = micro == self.accumulation - 1
            with nullcontext() if last else self.model.no_sync():
                loss = self.forward(*next(batches)) / self.accumulation
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def save(self, folder: Path) -> None:
        if distributed.get_rank() == 0:
            folder.mkdir(exist_ok=True)
            state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, folder / "checkpoint.pt")
        distributed.barrier()
