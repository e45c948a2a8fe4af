"""A Trainer on two ranks that accumulates, evaluates and saves: huggingface.py STORE OUT [no-knob]."""

import os
import sys
import time
from types import SimpleNamespace

import torch
from common import MEASURE, Stopwatch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from pretune.collector.integrations.transformers import PretuneCallback


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        tokens = torch.arange(32) % 60 + i % 4
        return {"input_ids": tokens, "labels": tokens}


class Watch(TrainerCallback):
    """Independent of pretune; after it in the list, and it makes evaluations expensive."""

    def __init__(self):
        self.watch = Stopwatch()

    def on_step_end(self, args, state, control, **given):
        self.watch.step()

    def on_evaluate(self, args, state, control, **given):
        time.sleep(0.5)


def main():
    store, out, *mode = sys.argv[1:]
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    arguments = TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=24,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=12,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    watch = Watch()
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=Tokens(4096),
        eval_dataset=Tokens(16),
        callbacks=[PretuneCallback(store, measure=MEASURE), watch],
    )
    if mode == ["no-knob"]:  # a stage that only transformers' own reading of the file fills in
        trainer.args.hf_deepspeed_config = SimpleNamespace(config={"zero_optimization": {"stage": "auto"}})
    trainer.train()
    watch.watch.said(int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
