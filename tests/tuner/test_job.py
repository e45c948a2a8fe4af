from __future__ import annotations

import json

import polars as pl
import pytest
import yaml

from pretune.collector.launchers import launcher_for
from pretune.datasets import TrialStore
from pretune.errors import InputError
from pretune.tuner.job import JobSpec, read_history


def test_a_job_is_read_with_what_it_names(write_job, target, workload):
    job = JobSpec.from_yaml(write_job(platform=None, default={"zero_stage": 2}))
    assert (job.name, job.platform) == ("job", "auto")
    assert job.workload() == workload
    assert job.default_knobs(target).zero_stage == 2
    assert len(job.candidates(target)) == 56  # ZeRO-0 reads no bucket size
    assert set(job.history_frame()["platform.name"]) == {"fast-link", "middling-link"}


def test_paths_are_relative_to_the_job(write_job, tmp_path, target):
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(json.loads(target.model_dump_json())))
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    job = JobSpec.from_yaml(write_job(platform="cluster.yaml", model={"huggingface": "config.json"}))
    assert job.platform == target
    assert job.model.layers == 2


def test_a_preset_names_a_model(write_job):
    assert JobSpec.from_yaml(write_job(model="gpt-tiny", sequence_length=128)).model.hidden_size == 256


def test_platforms_can_be_left_out_of_the_history(write_job, history):
    leave_one = {"path": str(history), "exclude_platforms": ["fast-link"]}
    job = JobSpec.from_yaml(write_job(history=leave_one))
    assert set(job.history_frame()["platform.name"]) == {"middling-link"}
    assert JobSpec.from_yaml(write_job(history="none")).history_frame().is_empty()


def test_the_command_line_changes_fields(write_job, history):
    job = JobSpec.from_yaml(write_job(history="none", budget={"trials": 4, "minutes": 9}))
    changed = job.changed(trials=2, history=str(history), strategy="random", seed=7)
    assert (changed.budget.trials, changed.budget.minutes, changed.budget.device_hours) == (2, 9.0, None)
    assert (changed.strategy, changed.seed) == ("random", 7)
    assert len(changed.history_frame()) == 128


def test_the_digest_is_of_what_decides_the_trials(write_job):
    job = JobSpec.from_yaml(write_job())
    assert job.changed(trials=99).digest() == job.digest()
    for changes in ({"seed": 1}, {"strategy": "random"}, {"history": "none"}):
        assert job.changed(**changes).digest() != job.digest()
    assert JobSpec.from_yaml(write_job(constraints=["micro_batch > 1"])).digest() != job.digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": None}, "space: Field required"),
        ({"spice": {}}, "spice: is no field here"),
        ({"budget": {"trials": 0}}, r"budget\.trials: .* got 0"),
        ({"budget": {}}, "budget: give one of trials, minutes, device_hours, cost, or several"),
        ({"budget": {"cost": 9}}, "budget: cost needs price_per_device_hour"),
        ({"budget": {"trials": 9, "stop_below": 1.5}}, r"budget\.stop_below: .* got 1.5"),
        ({"strategy": "guess"}, r"strategy: .*'random', got 'guess'"),
        ({"framework": "megatorn"}, "framework: 'megatorn' is not known"),
        ({"model": "gpt-tinny"}, "gpt-tiny"),
        ({"model": {"name": "x"}}, "model: layers: Field required"),
        ({"platform": {"name": "x"}}, "platform: accelerator: Field required"),
        ({"platform": "nowhere.yaml"}, "nowhere.yaml: cannot be read"),
        ({"global_batch_tokens": 1500}, "global_batch_tokens 1500 is no whole number of sequences.*nearest"),
        ({"launcher": "local"}, "launcher: is no mapping"),
        ({"verify_pairs": 1}, "verify_pairs: .* got 1"),
        ({"space": {"micro_bath": 1}}, "space: micro_bath is no knob"),
        ({"default": {"zero_stge": 2}}, "default: zero_stge is no knob of deepspeed; known: .*zero_stage"),
        ({"default": {"precision": "bf16"}}, "default: precision changes what is computed"),
        ({"default": {"micro_batch": 3}}, r"job\.yaml: default: micro_batch: .*; nearest: 2, 4"),
    ],
)
def test_errors_are_one_line_and_name_the_field(write_job, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        JobSpec.from_yaml(write_job(**changes))
    assert "\n" not in str(caught.value)


def test_a_history_that_is_not_there_is_named(write_job, tmp_path, history):
    with pytest.raises(InputError, match=r"nothing: holds no trials"):
        JobSpec.from_yaml(write_job(history=str(tmp_path / "nothing"))).history_frame()
    unknown = {"path": str(history), "exclude_platforms": ["fast"]}
    with pytest.raises(InputError, match=r"exclude_platforms: 'fast' is not in it; known: .*fast-link"):
        JobSpec.from_yaml(write_job(history=unknown)).history_frame()


def test_stores_behind_urls_stand_where_folders_do(write_job, history, recorded):
    pytest.importorskip("upath")
    for name, folder in {"history": history, "recorded": recorded}.items():
        TrialStore(f"memory://job/{name}").append(TrialStore(folder).trials())
    urls = {"history": "memory://job/history", "launcher": {"replay": "memory://job/recorded"}}
    job = JobSpec.from_yaml(write_job(**urls))
    assert len(job.history_frame()) == 128
    assert job.history_frame().equals(JobSpec.from_yaml(write_job()).history_frame())
    assert job.launcher == urls["launcher"]
    trial = next(TrialStore(recorded).trials())
    launcher = launcher_for(job.launcher, "unused")
    assert launcher.poll(launcher.submit(trial.spec)).knobs == trial.knobs


def test_history_is_without_diagnoses_and_with_trials_that_do_not_say_what_for(history, tmp_path):
    table = TrialStore(history).frame()
    purposes = [None, "diagnostic", *["search"] * (table.height - 2)]
    folder = tmp_path / "told" / "platform=told"
    folder.mkdir(parents=True)
    told = table.with_columns(pl.Series("purpose", purposes), pl.lit("told").alias("platform.name"))
    told.write_parquet(folder / "of-another-tool.parquet")
    assert read_history(tmp_path / "told")["purpose"].null_count() == 1
    assert len(read_history(tmp_path / "told")) == table.height - 1
