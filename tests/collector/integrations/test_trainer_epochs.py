"""A real Trainer that evaluates and saves at the ends of its epochs, not after steps."""

import time

import pytest

from pretune.datasets import Measure, ModelSpec, TrialStore

MODEL = ModelSpec(name="mlp", layers=1, hidden_size=8, heads=1, vocabulary=16, max_positions=8)
MEASURE = Measure(min_warmup_windows=2, max_warmup_windows=2, min_windows=6, max_windows=20, max_seconds=30)
EVALUATION_S = 2.0


class Slow(list):
    """Examples that are fetched one at a time, the evaluation's at great leisure."""

    def __getitem__(self, index):
        time.sleep(EVALUATION_S / len(self))
        return super().__getitem__(index)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_evaluations_at_the_ends_of_epochs_are_no_part_of_a_step(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from pretune.collector.integrations.transformers import PretuneCallback

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        num_train_epochs=5,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    examples = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 20
    recording = PretuneCallback(tmp_path / "trials", model=MODEL, measure=MEASURE)
    data = {"train_dataset": examples, "eval_dataset": Slow(examples[:4])}
    Trainer(LlamaForCausalLM(config), arguments, **data, callbacks=[recording]).train()
    (trial,) = TrialStore(tmp_path / "trials").trials()
    assert len(trial.window_times_s) == 20  # over the ends of four epochs
    assert max(trial.window_times_s) < EVALUATION_S
