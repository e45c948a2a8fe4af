"""Megatron's logs over its versions."""

from __future__ import annotations

import pytest

from pretune.datasets.importers.megatron import MegatronLog, stated

LINE = " iteration {:8d}/     100 | {} | global batch size:    32 | lm loss: {} |\n"
MS = "elapsed time per iteration (ms): {:.1f}"


def log(times: list[float], loss: str = "5.0E+00") -> str:
    return "".join(LINE.format(i + 1, MS.format(each), loss) for i, each in enumerate(times))


def test_the_arguments_become_model_workload_and_knobs(imported):
    (run,), _ = imported(MegatronLog(), "megatron/core_0.12.log")
    said = {"model.layers": 24, "model.kv_heads": 4, "model.vocabulary": 50432, "model.gated_mlp": True}
    said |= {"model.positions": "rotary", "model.norm": "rmsnorm", "model.tied_embeddings": False}
    said |= {"knob.tp": 2, "knob.dp": 4, "knob.micro_batch": 2, "knob.sequence_parallel": True}
    said |= {"workload.global_batch_tokens": 64 * 4096, "workload.precision": "bf16", "platform.devices": 8}
    said |= {"knob.activation_checkpointing": "selective", "status": "ok"}
    assert said.items() <= run.values.items()
    assert "knob.vp" not in run.values  # None in the dump: nothing is stated


def test_warmup_and_the_interval_with_a_checkpoint_do_not_count(imported):
    (run,), _ = imported(MegatronLog(), "megatron/core_0.12.log")  # 9.0 s at first, 3.2 s after the save
    assert run.values["step_time_s"] == pytest.approx(1.98, abs=0.03)
    assert run.values["warmup_windows"] == 5
    assert len(run.values["window_times_s"]) == 10
    assert run.values["peak_memory_reserved_bytes"] == 45056 * 2**20


def test_a_ramp_and_a_restart_are_runs_of_their_own(imported):
    runs, aside = imported(MegatronLog(), "megatron/megatron_deepspeed_2022_two_runs.log")
    assert [run.values["workload.global_batch_tokens"] // 2048 for run in runs] == [16, 32, 32]
    assert [run.values["step_time_s"] for run in runs] == pytest.approx([2.4, 4.0, 4.0], abs=0.02)  # in (s)
    for run in runs:  # samples per second agree with step time and batch
        tokens = run.values["tokens_per_s"] * run.values["step_time_s"]
        assert tokens == pytest.approx(run.values["workload.global_batch_tokens"], rel=0.01)
    assert len({run.key for run in runs}) == 3
    assert not aside


def test_lines_that_a_log_does_not_have_weigh_nothing(written):
    lines = [LINE.format(at, MS.format(ms), "5.0E+00") for at, ms in ((1, 900), (2, 100), (3, 100), (4, 100))]
    later = [LINE.format(at, MS.format(ms), "4.0E+00") for at, ms in ((90, 300), (91, 100))]
    (run,), _ = written(MegatronLog(), "".join(lines + later))  # as where a rank's part was cut out
    assert run.values["step_time_s"] == pytest.approx((0.1 + 0.1 + 0.3 + 0.1) / 4)


def test_out_of_memory_is_a_status_with_the_log_s_own_words(imported):
    (run,), _ = imported(MegatronLog(), "megatron/megatron_deepspeed_2024_oom.log")
    assert run.values["status"] == "oom"
    assert run.values["cause"].startswith(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00"
    )
    assert "tokens_per_s_per_device" not in run.values  # a run that failed has no throughput


def test_an_error_that_training_went_on_after_is_none(written):
    text = log([900.0, 100.0, 100.0]) + "Traceback (most recent call last):\nValueError: no wandb\n"
    (ended,), _ = written(MegatronLog(), text)
    assert (ended.values["status"], ended.values["cause"]) == ("crash", "ValueError: no wandb")
    (went_on,), _ = written(MegatronLog(), text + LINE.format(4, MS.format(100.0), "4.9E+00"))
    assert went_on.values["status"] == "ok"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (
            "[rank5]:[E1] [PG ID 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)",
            "timeout",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0", "oom"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", "oom"),
        ("WARNING: CUDA out of memory is avoided by offloading", "ok"),
        ("Watch the collective operation timeout: 600 s", "ok"),
    ],
)
def test_only_what_says_so_is_a_failure(written, line, status):
    (run,), _ = written(MegatronLog(), log([900.0, 100.0, 100.0]) + line + "\n")
    assert run.values["status"] == status


def test_a_loss_that_became_nan_is_a_diverged_run(written):
    (run,), _ = written(MegatronLog(), log([900.0, 100.0, 100.0]) + LINE.format(4, MS.format(100.0), "nan"))
    assert run.values["status"] == "diverged"
    assert run.values["loss_first"] == 5.0
    assert "loss_last" not in run.values


def test_lines_of_several_ranks_count_once(written):
    lines = log([900.0, 120.0, 100.0, 100.0]).splitlines(keepends=True)
    (run,), _ = written(MegatronLog(), "".join(f"[default{r}]:{line}" for line in lines for r in (0, 7)))
    assert run.values["window_times_s"] == [0.1, 0.1]


def test_a_time_without_a_unit_is_not_taken(written):
    text = "".join(LINE.format(i, "elapsed time per iteration: 2.0", "5.0") for i in range(1, 9))
    runs, (aside,) = written(MegatronLog(), text)
    assert not runs
    assert "no elapsed time with a unit" in aside.reason


def test_warmup_alone_is_no_measurement(written):
    runs, (aside,) = written(MegatronLog(), log([900.0, 700.0]))
    assert not runs
    assert "only its warm-up (2 lines" in aside.reason


def test_the_names_of_megatron_1_are_the_same_knobs(imported):
    (run,), _ = imported(MegatronLog(), "megatron/megatron_1.1.5_pipeline.log")
    said = {"knob.tp": 4, "knob.pp": 2, "knob.micro_batch": 4, "knob.accumulation": 16}
    assert (said | {"platform.devices": 16, "model.heads": 16}).items() <= run.values.items()
    assert "workload.global_batch_sequences" not in run.values  # no line of these versions states it
    assert run.values["step_time_s"] == pytest.approx(6.4, abs=0.02)


def test_a_name_that_fills_its_column_has_no_dots_after_it(written):
    dump = (
        "---------- arguments ----------\n  virtual_pipeline_model_parallel_size  2\n  hidden_size ..... 64\n"
    )
    (run,), _ = written(MegatronLog(), f"{dump}---------- end of arguments ----------\n{log([1.0] * 4)}")
    assert (run.values["knob.vp"], run.values["model.hidden_size"]) == (2, 64)


def test_an_expert_s_own_width_is_the_model_s():
    dump = {"num_experts": "8", "moe_router_topk": "2", "ffn_hidden_size": "8192"}
    assert stated(dump)["model.ffn_size"] == 8192
    assert stated(dump | {"moe_ffn_hidden_size": "None"})["model.ffn_size"] == 8192
    assert stated(dump | {"moe_ffn_hidden_size": "1024"})["model.ffn_size"] == 1024


def test_the_default_of_query_groups_is_not_taken_for_a_shape():
    dump = {"num_attention_heads": "16", "num_query_groups": "1", "group_query_attention": "False"}
    assert stated(dump)["model.kv_heads"] == 16  # each head has its own


@pytest.mark.parametrize(
    ("dump", "size"),
    [
        ({"ffn_hidden_size": "11008", "swiglu": "True"}, 11008),
        ({"swiglu": "True"}, 10880),  # two thirds of 4 x 4096, in whole 64s
        ({"swiglu": "False"}, 16384),
        ({}, 16384),
    ],
)
def test_a_feed_forward_size_that_is_not_printed_is_megatrons_own(dump, size):
    assert stated({"hidden_size": "4096", **dump})["model.ffn_size"] == size


def test_arguments_become_the_knobs_that_megatron_declares():
    dump = {
        "use_distributed_optimizer": "True",
        "overlap_grad_reduce": "True",
        "ddp_bucket_size": "40000000",
        "grad_reduce_in_bf16": "False",
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": "4",
        "moe_token_dispatcher_type": "alltoall",
        "cp_comm_type": "['p2p']",
    }
    knobs = {column.removeprefix("knob."): value for column, value in stated(dump).items()}
    assert knobs == {
        "zero_stage": 1,
        "overlap_comm": True,
        "reduce_bucket_size": 40_000_000,
        "communication_data_type": "fp32",
        "activation_checkpointing": "full",
        "recompute_method": "block",
        "recompute_num_layers": 4,
        "moe_token_dispatcher": "alltoall",
        "cp_comm_type": "p2p",
    }
    assert "knob.zero_stage" not in stated(dump | {"deepspeed": "True"})  # which has an argument of its own
