"""A real Trainer that evaluates and saves at the ends of its epochs, or whenever another callback says so."""

import time

import pytest

from pretune.datasets import Measure, ModelSpec, TrialStore

MODEL = ModelSpec(name="mlp", layers=1, hidden_size=8, heads=1, vocabulary=16, max_positions=8)
MEASURE = Measure(min_warmup_windows=2, max_warmup_windows=2, min_windows=6, max_windows=20, max_seconds=30)
EVALUATION_S = 2.0
WAIT_S = 0.2  # of a step, for its data


class Slow(list):
    """Examples that are fetched one at a time, all of them in ``seconds``."""

    def __init__(self, examples, seconds=EVALUATION_S):
        super().__init__(examples)
        self.each_s = seconds / len(examples)

    def __getitem__(self, index):
        time.sleep(self.each_s)
        return super().__getitem__(index)


def trained(tmp_path, data, callbacks, **arguments):
    """The trial of a small Trainer, with the Trainer."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from pretune.collector.integrations.transformers import PretuneCallback

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    common = {"per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    recording = PretuneCallback(tmp_path / "trials", model=MODEL, measure=MEASURE)
    trainer = Trainer(
        LlamaForCausalLM(config),
        TrainingArguments(output_dir=str(tmp_path / "out"), **common, **arguments),
        **data,
        callbacks=[recording, *callbacks],
    )
    trainer.train()
    (trial,) = TrialStore(tmp_path / "trials").trials()
    return trial, trainer


def examples(count):
    return [{"input_ids": list(range(8)), "labels": list(range(8))}] * count


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_evaluations_at_the_ends_of_epochs_are_no_part_of_a_step(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    epochs = {"num_train_epochs": 5, "eval_strategy": "epoch", "save_strategy": "epoch"}
    data = {"train_dataset": examples(20), "eval_dataset": Slow(examples(4))}
    trial, _ = trained(tmp_path, data, [], **epochs)
    assert len(trial.window_times_s) == 20  # over the ends of four epochs
    assert max(trial.window_times_s) < EVALUATION_S


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_evaluation_that_another_callback_asks_for_is_left_out_and_the_wait_for_data_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    from transformers import Trainer, TrainerCallback

    class Asks(TrainerCallback):
        """After pretune's in the list: it decides later, and dawdles when all is done."""

        def on_step_end(self, args, state, control, **given):
            control.should_evaluate = control.should_save = state.global_step % 4 == 0

        def on_save(self, *given, **more):
            time.sleep(EVALUATION_S)

    before = Trainer._maybe_log_save_evaluate
    data = {"train_dataset": Slow(examples(64), WAIT_S * 16), "eval_dataset": Slow(examples(4), 0.5)}
    arguments = {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 1000, "save_strategy": "no"}
    trial, trainer = trained(tmp_path, data, [Asks()], **arguments)
    assert trainer.state.global_step == 12
    assert len(trial.window_times_s) == 10
    assert min(trial.window_times_s) > WAIT_S  # also of the window after an evaluation
    assert max(trial.window_times_s) < EVALUATION_S
    assert Trainer._maybe_log_save_evaluate is before
