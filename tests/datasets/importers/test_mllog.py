"""MLPerf results of several rounds and submitters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pretune.datasets.importers.mllog import MLLog

GOLDEN = Path(__file__).parent / "golden"


def test_blocks_without_their_evaluations_give_the_step_time(imported):
    (run,), _ = imported(MLLog(), "mlperf/v4.0_gpt3.txt")  # 24 steps of 5 s a block, then 11 s of evaluation
    assert run.values["step_time_s"] == pytest.approx(5.0, rel=0.01)
    assert len(run.values["window_times_s"]) == 6
    said = {"platform.nodes": 8, "accelerator.name": "Example X100 80GB", "workload.sequence_length": 2048}
    assert (said | {"knob.accumulation": 16, "status": "ok"}).items() <= run.values.items()


def test_an_aborted_run_is_no_success(imported):
    (run,), _ = imported(MLLog(), "mlperf/v5.0_llama31_405b_aborted.txt")
    assert (run.values["status"], run.values["cause"]) == ("crash", "run_stop with status aborted")
    # this round says how far a block went only at its evaluation
    assert run.values["step_time_s"] == pytest.approx(15.0, rel=0.01)
    assert (run.values["loss_first"], run.values["loss_last"]) == (8.0, 6.0)


def test_the_first_block_begins_with_the_run_where_nobody_says_so(imported):
    (run,), _ = imported(MLLog(), "mlperf/v4.0_llama2_lora_no_first_block.txt")
    assert run.values["window_times_s"] == pytest.approx([2.97, 3.0, 3.03, 2.985])
    assert run.values["workload.global_batch_sequences"] == 8
    assert "workload.global_batch_tokens" not in run.values  # its sequence length is a rule, not in the log


BLOCK = [("run_start", 0), ("block_start", 0), ("eval_start", 40_000), ("eval_stop", 55_000)]


def mlperf(events: list[tuple[str, int]]) -> str:
    """A log of events at their ms; ``samples_count`` is 8 sequences a second of training."""
    lines = [json.dumps({"time_ms": 0, "key": "global_batch_size", "value": 8, "metadata": {}})]
    lines += [
        json.dumps({"time_ms": ms, "key": key, "value": None, "metadata": {"samples_count": count}})
        for (key, ms), count in ((each, 8 * each[1] // 1000) for each in events)
    ]
    return "".join(f":::MLLOG {line}\n" for line in lines)


def test_an_evaluation_inside_a_block_is_no_part_of_its_steps(written):
    (run,), _ = written(MLLog(), mlperf([*BLOCK, ("block_stop", 100_000), ("run_stop", 100_000)]))
    assert run.values["step_time_s"] == pytest.approx(0.85)  # 100 steps in 100 s, of which 15 s evaluate
    assert not run.notes


def test_a_block_that_begins_before_the_last_one_stopped_takes_no_step_from_it(written):
    """As a submission of round 5.0 has it: only the last block stops, and says where it began."""
    events = [*BLOCK[:2], ("eval_accuracy", 80_000), ("block_start", 80_001), ("eval_accuracy", 100_000)]
    log = mlperf([*events, ("block_stop", 100_001), ("run_stop", 100_001)])
    log = log.replace('"samples_count": 800}}\n:::MLLOG {"time_ms": 100001, "key": "run', "%s")
    (run,), _ = written(MLLog(), log % '"samples_count": 640}}\n:::MLLOG {"time_ms": 100001, "key": "run')
    assert run.values["step_time_s"] == pytest.approx(1.0, rel=0.01)


def test_evaluations_that_nobody_times_are_told(written):
    ends = [
        ("block_stop", 50_000),
        ("eval_accuracy", 50_000),
        ("block_start", 50_001),
        ("block_stop", 100_001),
    ]
    (run,), _ = written(MLLog(), mlperf([*BLOCK[:2], *ends, ("run_stop", 100_001)]))
    assert run.values["step_time_s"] == pytest.approx(1.0)
    assert run.notes == ["does not time its evaluations; they are in the step time"]


def test_a_first_block_that_alone_is_slow_is_warmup(written):
    ends = [(key, ms) for ms in (200, 300, 400) for key in ("block_stop", "block_start")]
    log = mlperf([*BLOCK[:2], *((key, 1000 * ms) for key, ms in ends)])
    counts = {1600: 800, 2400: 1600, 3200: 2400}  # the first 200 s trained as much as each 100 s after
    for stated, true in counts.items():
        log = log.replace(f'"samples_count": {stated}}}', f'"samples_count": {true}}}')
    (run,), _ = written(MLLog(), log)
    assert (run.values["step_time_s"], run.values["warmup_windows"]) == (pytest.approx(1.0), 100)


def test_the_system_comes_from_beside_the_results(tmp_path):
    log = tmp_path / "results" / "Small" / "gpt3" / "result_0.txt"
    log.parent.mkdir(parents=True)
    lines = (GOLDEN / "mlperf" / "v4.0_gpt3.txt").read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "SYSJSON" not in line))
    (tmp_path / "systems").mkdir()
    system = {"number_of_nodes": "2", "accelerators_per_node": "4", "accelerator_model_name": "Y"}
    system |= {"system_name": "Small (2x Y)"}
    (tmp_path / "systems" / "Small.json").write_text(json.dumps(system))
    (run,) = MLLog().read(log)
    assert (run.values["platform.nodes"], run.values["accelerator.name"]) == (2, "Y")
    assert (run.values["platform.devices"], run.values["platform.name"]) == (8, "Small-2x-Y")
    shutil.rmtree(tmp_path / "systems")
    (run,) = MLLog().read(log)
    assert "platform.nodes" not in run.values


def test_a_line_that_is_no_json_is_set_aside_and_the_run_taken(imported, written):
    text = (GOLDEN / "mlperf" / "v4.0_gpt3.txt").read_text()
    (run,), (aside,) = written(MLLog(), text + ':::MLLOG {"namespace": "", "time_ms": 17150\n')
    assert aside.line == text.count("\n") + 1
    (whole,), _ = imported(MLLog(), "mlperf/v4.0_gpt3.txt")
    assert (run.key, run.values) == (whole.key, whole.values)


@pytest.mark.parametrize("count", ["1e999", "-5", "null", '"many"', "true", "[1]"])
def test_a_count_that_is_none_is_not_counted_with(written, count):
    text = (GOLDEN / "mlperf" / "v5.0_llama31_405b_aborted.txt").read_text()
    assert '"samples_count": 5120}' in text
    (run,), _ = written(MLLog(), text.replace('"samples_count": 5120}', f'"samples_count": {count}}}'))
    assert run.values["step_time_s"] == pytest.approx(15.0, rel=0.5)


@pytest.mark.parametrize("key", ["opt_name", "global_batch_size", "submission_benchmark", "tracked_stats"])
@pytest.mark.parametrize("value", ["{}", "[1]", "null", '{"throughput": {}}'])
def test_a_value_of_another_kind_says_nothing(imported, written, key, value):
    text = (GOLDEN / "mlperf" / "v4.0_gpt3.txt").read_text()
    odd = f':::MLLOG {{"time_ms": 1, "key": "{key}", "value": {value}, "metadata": {{}}}}\n'
    (run,), _ = written(MLLog(), odd + text)
    (whole,), _ = imported(MLLog(), "mlperf/v4.0_gpt3.txt")
    assert run.values == whole.values
