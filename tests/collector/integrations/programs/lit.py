"""A Lightning fit on two ranks over DDP, with validation: lit.py STORE OUT."""

import sys
import time

import lightning
import torch
from common import MEASURE, Stopwatch
from lightning.pytorch.strategies import DDPStrategy

from pretune.collector.integrations.lightning import PretuneCallback
from pretune.datasets import ModelSpec

MODEL = ModelSpec(name="mlp", layers=1, hidden_size=64, heads=1, vocabulary=64, max_positions=64)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(64, 64)

    def training_step(self, batch):
        time.sleep(0.01)
        return (self.net(batch) ** 2).mean()

    def validation_step(self, batch):
        time.sleep(0.3)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Watch(lightning.Callback):
    def __init__(self):
        self.watch, self.seen = Stopwatch(), 0

    def on_train_batch_end(self, trainer, *rest):
        if trainer.global_step > self.seen:
            self.seen = trainer.global_step
            self.watch.step()


def main():
    store, out = sys.argv[1:]
    data = torch.utils.data.DataLoader(torch.ones(4096, 64), batch_size=4)
    watch = Watch()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=40,
        accumulate_grad_batches=2,
        val_check_interval=20,
        limit_val_batches=1,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=out,
        callbacks=[PretuneCallback(store, model=MODEL, sequence_length=16, measure=MEASURE), watch],
    )
    trainer.fit(Module(), data, data)
    watch.watch.said(trainer.global_rank)


if __name__ == "__main__":
    main()
