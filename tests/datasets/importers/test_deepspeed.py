"""DeepSpeed's logs, and its autotuner's results."""

from __future__ import annotations

import json

import pytest

from pretune.datasets.importers.deepspeed_autotuning import DeepSpeedAutotuning
from pretune.datasets.importers.deepspeed_log import DeepSpeedLog
from pretune.errors import InputError


def test_the_running_average_gives_each_interval_s_time(imported):
    (run, failed), _ = imported(DeepSpeedLog(), "deepspeed/0.12_run_and_oom.log")
    assert run.values["step_time_s"] == pytest.approx(1.25, rel=0.02)
    assert run.values["window_times_s"] == pytest.approx([1.25] * 9, rel=0.02)
    said = {"knob.zero_stage": 2, "knob.reduce_bucket_size": 200_000_000, "knob.overlap_comm": True}
    said |= {"knob.micro_batch": 4, "knob.accumulation": 2, "workload.global_batch_sequences": 32}
    said |= {"knob.offload_optimizer": "cpu", "workload.precision": "bf16", "platform.devices": 4}
    said |= {"software.deepspeed": "0.12.2", "counter.backward_s": 0.7, "loss_last": 6.3}
    assert said.items() <= run.values.items()
    assert (failed.values["status"], failed.values["knob.micro_batch"]) == ("oom", 16)
    assert "step_time_s" not in failed.values
    assert "loss_last" not in failed.values  # of the run before it


def test_a_pipeline_s_own_lines_and_a_loss_of_nan(imported):
    (run,), _ = imported(DeepSpeedLog(), "deepspeed/pipeline_diverged.log")
    assert run.values["status"] == "diverged"
    assert run.values["step_time_s"] == pytest.approx(2.4, rel=0.02)


@pytest.mark.parametrize(
    ("on", "precision"), [(None, "fp32"), ("bfloat16_config", "bf16"), ("float16_config", "fp16")]
)
def test_the_precision_is_that_which_is_on_else_full(written, on, precision):
    said = "[2026-01-01 00:00:00,000] [INFO] [config.py:678:print] "
    names = ("bfloat16_config", "float16_config")  # as 0.19 prints them
    lines = [f"{said}  {name} ............... enabled={name == on} auto_cast=False" for name in names]
    lines = [f"{said}DeepSpeedEngine configuration:", *lines, f"{said}  train_batch_size ............. 16"]
    lines += [
        f"[INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
        "RunningAvgSamplesPerSec=32.0, CurrSamplesPerSec=32.0, MemAllocated=0.1GB, MaxMemAllocated=0.1GB"
        for step in range(3, 9)
    ]
    (run,), _ = written(DeepSpeedLog(), "\n".join([*lines, ""]))
    assert run.values["workload.precision"] == precision
    assert run.values["step_time_s"] == pytest.approx(0.5)
    assert (run.span.after, run.span.to, run.span.windows) == (6, 10, 4)


TIMER = "[timer.py:260:stop] epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec={1}, "
TIMER += "CurrSamplesPerSec=9.6, MemAllocated=1.0GB, MaxMemAllocated=2.0GB\n"


def test_without_a_configuration_samples_per_second_are_all_there_is(written):
    # 10 s for the first 10 samples, from then on 20 samples a second: 30 samples in 11 s, 50 in 12 s
    (run,), _ = written(
        DeepSpeedLog(), "".join(TIMER.format(*at) for at in ((12, 1), (32, 30 / 11), (52, 50 / 12)))
    )
    assert run.values["samples_per_s"] == pytest.approx(20.0)
    assert not {"step_time_s", "window_times_s"} & set(run.values)
    assert "no train_batch_size" in run.notes[0]


def test_one_that_failed_has_no_samples_per_second_either(written):
    end = "[launch.py:325:sigkill_handler] exits with return code = -9\n"
    (run,), _ = written(DeepSpeedLog(), "".join(TIMER.format(5 * n, 9.5) for n in range(1, 6)) + end)
    assert run.values["status"] == "crash"
    assert not {"samples_per_s", "step_time_s"} & set(run.values)


def test_experiments_that_name_an_error_failed(imported):
    runs, aside = imported(DeepSpeedAutotuning(), "deepspeed-autotuning/autotuning_results")
    ended = {(run.values["knob.zero_stage"], run.values["status"]) for run in runs}
    assert ended == {(0, "oom"), (1, "ok"), (2, "ok")}
    assert {run.values.get("step_time_s") for run in runs} == {0.4, 0.5, None}
    reasons = ("only profiles", "it may still run", "was not run")
    assert [why in each.reason for why, each in zip(reasons, aside, strict=True)] == [True] * 3


@pytest.mark.parametrize("throughput", [0.0, "nan", 1600.0, None])
def test_metrics_that_contradict_themselves_are_set_aside(tmp_path, throughput):
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}
    (tmp_path / "exp.json").write_text(json.dumps({"name": "z", "ds_config": config}))
    metrics = {"latency": 64e6 / 160, "throughput": throughput}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (aside,) = DeepSpeedAutotuning().read(tmp_path)
    assert "throughput" in aside.reason


def test_a_folder_without_experiments_is_refused(tmp_path):
    with pytest.raises(InputError, match="give the autotuner's results_dir"):
        list(DeepSpeedAutotuning().read(tmp_path))
