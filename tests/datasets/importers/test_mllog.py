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


def test_the_system_comes_from_beside_the_results(tmp_path):
    log = tmp_path / "results" / "Small" / "gpt3" / "result_0.txt"
    log.parent.mkdir(parents=True)
    lines = (GOLDEN / "mlperf" / "v4.0_gpt3.txt").read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "SYSJSON" not in line))
    (tmp_path / "systems").mkdir()
    system = {"number_of_nodes": "2", "accelerators_per_node": "4", "accelerator_model_name": "Y"}
    (tmp_path / "systems" / "Small.json").write_text(json.dumps(system))
    (run,) = MLLog().read(log)
    assert (run.values["platform.nodes"], run.values["accelerator.name"]) == (2, "Y")
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
