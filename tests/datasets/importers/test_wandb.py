"""Exports of W&B as runs."""

import json
import math
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.wandb import WandbExport
from pretune.errors import InputError

OFFLINE = "wandb/run-20250301_100000-ab12cd34/files/wandb-summary.json"


def test_a_table_of_the_page_says_how_each_run_ended(imported):
    (good, crashed, empty), (running,) = imported(WandbExport(), "wandb/runs_of_the_page.csv")
    assert good.key == "wandb-aa11bb22"
    assert (good.values["tokens_per_s"], good.values["status"]) == (52000.5, "ok")  # not the evaluation's
    assert (good.values["knob.micro_batch"], good.values["workload.precision"]) == (4, "bf16")
    assert good.values["created_at"] == datetime(2025, 3, 1, 10, tzinfo=UTC)
    assert (crashed.values["status"], crashed.values["cause"]) == ("crash", "W&B says crashed")
    assert (empty.values["status"], "no metric" in empty.values["cause"]) == ("crash", True)
    assert (running.line, "running" in running.reason) == (4, True)


def test_a_data_frame_of_dicts(imported):
    (keen, lost, void), (unit,) = imported(WandbExport(), "wandb/runs_df.csv")
    assert keen.values["tokens_per_s_per_device"] == 6500.0
    assert (keen.values["model.layers"], keen.values["knob.tp"], keen.values["wall_s"]) == (12, 2, 120)
    assert lost.values["status"] == "ok"
    assert lost.values["step_time_s"] == pytest.approx(0.25)
    assert void.values["status"] == "crash"  # an empty summary is no success
    assert "step_time does not say its unit" in unit.reason


def test_a_history_is_the_median_of_what_is_steady(imported, golden, tmp_path):
    (run,), _ = imported(WandbExport(), "wandb/history.csv")
    assert run.values["step_time_s"] == pytest.approx(0.250)  # 900 and 600 ms are its warm-up
    assert run.values["loss_last"] == pytest.approx(3.4)
    lines = (golden / "wandb" / "history.csv").read_text().split()
    rows = [dict(zip(lines[0].split(","), map(float, line.split(",")), strict=True)) for line in lines[1:]]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    for name in ("a.json", "b.jsonl", "c.parquet"):
        (same,) = WandbExport().read(tmp_path / name)
        assert same.values == run.values


def test_the_files_of_an_offline_run(imported):
    (run,), _ = imported(WandbExport(), OFFLINE)
    assert run.key == "wandb-ab12cd34"
    assert run.values["samples_per_s"] == 32.0
    assert run.values["accelerator.name"] == "NVIDIA A100-SXM4-80GB"
    assert (run.values["platform.devices"], run.values["platform.devices_per_node"]) == (8, 8)
    assert (run.values["knob.zero_stage"], run.values["knob.micro_batch"]) == (2, 4)
    assert "does not say how it ended" in run.notes[0]


def test_the_trainer_knows_better_than_wandb_what_the_training_took(tmp_path):
    summary = {"train/train_runtime": 100.0, "train/train_samples_per_second": 8.0, "_runtime": 130.0}
    (tmp_path / "wandb-summary.json").write_text(json.dumps(summary))
    (run,) = WandbExport().read(tmp_path / "wandb-summary.json")
    assert run.values["wall_s"] == 100.0
    assert not [note for note in run.notes if "two ways" in note]


def test_the_users_map_names_what_has_no_unit(golden):
    told = Mapping(columns={"step_time_s": "step_time"}, units={"step_time_s": "ms"})
    runs = [r for r in WandbExport(told).read(golden / "wandb" / "runs_df.csv") if isinstance(r, Run)]
    assert runs[-1].values["step_time_s"] == pytest.approx(0.25e-3)


def test_what_is_no_export_is_refused_in_one_line(written, tmp_path):
    with pytest.raises(InputError, match=r"give a \.csv"):
        written(WandbExport(), "text")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no Name and no _step column"):
        list(WandbExport().read(tmp_path / "a.csv"))


FILES = ["wandb/runs_of_the_page.csv", "wandb/runs_df.csv", "wandb/history.csv", OFFLINE]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from(FILES), where=st.floats(0, 1))
def test_an_export_cut_anywhere_has_no_wrong_row(golden, tmp_path, name, where):
    whole = {r.key: r for r in WandbExport().read(golden / name) if isinstance(r, Run)}
    text = (golden / name).read_bytes().rstrip()
    cut = tmp_path / "run-20250301_100000-ab12cd34" / "files" / name.rpartition("/")[2]
    cut.parent.mkdir(parents=True, exist_ok=True)
    cut.write_bytes(text[: int(where * (len(text) - 1))])
    try:
        found = list(WandbExport().read(cut))
    except InputError:  # cut within its header
        return
    for run in found:
        if isinstance(run, SetAside):
            continue
        if name.endswith("history.csv"):
            assert run.key in whole
        else:
            assert run.values == whole[run.key].values or math.isnan(run.values.get("loss_last", 0.0))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    row=st.dictionaries(
        st.sampled_from(
            ["step_time_ms", "tokens_per_second", "bf16", "n_layer", "loss", "_step", "_timestamp"]
        ),
        st.none() | st.text(max_size=5) | st.floats() | st.integers() | st.lists(st.integers(), max_size=2),
    )
)
def test_strange_values_are_no_crash_and_no_wrong_speed(tmp_path, row):
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    for found in WandbExport().read(tmp_path / "a.jsonl"):
        if isinstance(found, Run) and found.values["status"] == "ok":
            for name in ("step_time_s", "tokens_per_s"):
                assert 0 < found.values.get(name, 1.0) < math.inf
