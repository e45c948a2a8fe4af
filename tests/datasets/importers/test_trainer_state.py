"""Trainer's states as runs: what is stated, what is taken off, what is left alone."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretune.datasets.importers.account import import_files
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given
from pretune.datasets.importers.trainer_state import TrainerState
from pretune.datasets.platform import Platform
from pretune.datasets.store import TrialStore
from pretune.errors import InputError


def state(name: str) -> str:
    return f"trainer/{name}/trainer_state.json"


def test_an_early_stop_and_evaluations_do_not_change_a_steps_time(imported):
    (run,), aside = imported(TrainerState(), state("early_stop"))
    assert not aside
    assert run.values["step_time_s"] == pytest.approx((140 - 2 * 30) / 40)  # Trainer's own: 140 / 50
    assert run.values["workload.global_batch_sequences"] == 16
    assert (run.values["knob.micro_batch"], run.values["knob.accumulation"]) == (2, 2)
    assert (run.values["model.layers"], run.values["model.kv_heads"]) == (6, 2)
    assert (run.values["platform.devices"], run.values["loss_last"]) == (4, 3.0)
    assert run.notes[0].startswith("step_time_s has starting up and saving in it")


def test_logs_with_the_time_so_far_give_steady_windows(imported):
    (run,), _ = imported(TrainerState(), state("tokens_seen"))
    assert run.values["step_time_s"] == pytest.approx(0.5)  # neither the 2 s of the start nor the evaluation
    assert run.values["workload.global_batch_tokens"] == 16 * 128
    assert run.values["workload.sequence_length"] == 128


def test_each_training_of_a_resumed_state_is_a_run_of_its_own_steps(imported):
    runs, _ = imported(TrainerState(), state("resumed"))
    assert [run.values["step_time_s"] for run in runs] == [pytest.approx(2.0), pytest.approx(2.5)]
    assert len({run.key for run in runs}) == 2


def test_a_checkpoint_states_no_times(imported):
    runs, (aside,) = imported(TrainerState(), state("checkpoint"))
    assert not runs
    assert "checkpoint" in aside.reason


def test_a_checkpoint_beside_the_results_of_its_run_takes_them(tmp_path):
    told = {
        "global_step": 20,
        "max_steps": 20,
        "train_batch_size": 2,
        "log_history": [{"loss": 2, "step": 20}],
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps(told))
    results = {"train_loss": 3.0, "train_runtime": 10.0, "train_samples_per_second": 8.0}
    (tmp_path / "train_results.json").write_text(json.dumps(results))
    (run,) = TrainerState().read(tmp_path / "trainer_state.json")
    assert run.values["step_time_s"] == pytest.approx(0.5)


def test_a_loss_that_became_nan_is_a_divergence(tmp_path):
    summary = {"step": 4, "train_loss": 1, "train_runtime": 2.0}
    told = {"log_history": [{"loss": 4.0, "step": 2}, {"loss": float("nan"), "step": 4}, summary]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(told))
    (run,) = TrainerState().read(tmp_path / "trainer_state.json")
    assert run.values["status"] == "diverged"
    assert "step_time_s" not in run.values


def test_json_of_something_else_is_refused_in_one_line(written):
    with pytest.raises(InputError, match=r"log_history; give the trainer_state\.json"):
        written(TrainerState(), "{}")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from(["early_stop", "tokens_seen", "resumed"]), where=st.floats(0, 1))
def test_a_state_cut_anywhere_is_set_aside(golden, tmp_path, name, where):
    text = (golden / state(name)).read_bytes().rstrip()
    (tmp_path / "trainer_state.json").write_bytes(text[: int(where * (len(text) - 1))])
    (found,) = TrainerState().read(tmp_path / "trainer_state.json")
    assert isinstance(found, SetAside)
    assert "cut off" in found.reason


strange = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4) | st.just("1e999"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = ("loss", "step", "train_runtime", "train_loss", "eval_runtime", "num_input_tokens_seen")
KEYS += ("train_samples_per_second", "total_flos")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    log=st.lists(st.dictionaries(st.sampled_from(KEYS), strange | st.floats(0, 1e6), max_size=6), max_size=6),
    more=st.dictionaries(
        st.sampled_from(["max_steps", "global_step", "train_batch_size", "num_train_epochs"]), strange
    ),
)
def test_strange_values_are_no_crash_and_no_wrong_time(tmp_path, log, more):
    (tmp_path / "trainer_state.json").write_text(json.dumps({**more, "log_history": log}))
    for found in TrainerState().read(tmp_path / "trainer_state.json"):
        if isinstance(found, Run) and "step_time_s" in found.values:
            assert 0 < found.values["step_time_s"] < float("inf")


def test_a_folder_of_states_becomes_trials_once(golden, tmp_path):
    platform = Platform.from_mapping(
        {"name": "four", "accelerator": {"name": "A100-80GB"}, "devices_per_node": 4}, "test"
    )
    given_ = Given(platform, {"workload.sequence_length": 128})
    store = TrialStore(tmp_path / "store")
    first = import_files(TrainerState(), [golden / "trainer" / "early_stop"], given_, store)
    again = import_files(TrainerState(), [golden / "trainer" / "early_stop"], given_, store)
    assert (first.taken, first.set_aside, again.taken, again.already_there) == (1, [], 0, 1)
    (trial,) = store.trials()
    assert trial.tokens_per_s == pytest.approx(16 * 128 / 2.0)
