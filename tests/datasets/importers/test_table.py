import csv
import json
import re

import polars as pl
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.datasets import Status, TrialStore
from pretune.datasets.importers.account import import_files
from pretune.datasets.importers.base import SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.table import PUBLISHED, Table
from pretune.errors import InputError

MAP = {
    "columns": {
        "accelerator.name": "gpu",
        "platform.devices": "gpus",
        "knob.micro_batch": "mbs",
        "knob.tp": "tp",
        "knob.block": "block",
        "step_time_s": "ms",
        "tokens_per_s": "tok/s",
        "status": "how",
    },
    "units": {"step_time_s": "ms"},
    "constants": {
        "platform.devices_per_node": 8,
        "model.name": "tiny",
        "model.layers": 2,
        "model.hidden_size": 64,
        "model.heads": 4,
        "model.vocabulary": 256,
        "workload.sequence_length": 128,
        "workload.global_batch_tokens": 8192,
        "workload.precision": "bf16",
    },
    "status": {"fine": "ok", "killed": "oom"},
}
HEADER = "gpu,gpus,mbs,tp,block,ms,tok/s,how\n"


def imported(tmp_path, text, mapping=MAP, name="t.csv"):
    path = tmp_path / name
    path.write_text(text)
    mapping = Mapping.from_mapping(mapping, "map")
    return path, [
        found if isinstance(found, SetAside) else complete(found, path, "csv", Given(None, mapping.constants))
        for found in Table(mapping).read(path)
    ]


def test_a_table_is_read_by_its_mapping_with_units_and_words(tmp_path):
    _, (good, bad) = imported(
        tmp_path,
        HEADER + "NVIDIA A100-SXM4-80GB,8,4,2,32,100,81920,fine\nNVIDIA A100-SXM4-80GB,8,64,1,x,,,killed\n",
    )
    assert good.step_time_s == pytest.approx(0.1)
    assert good.tokens_per_s_per_device == pytest.approx(10240)
    assert good.knobs.settings() == {"micro_batch": 4, "accumulation": 4, "dp": 4, "tp": 2, "block": 32}
    assert good.platform.name == "a100-sxm-80gb-1x8"  # one device has one name, whatever a log calls it
    assert good.platform.accelerator.peak_flops_per_s.bf16 == 312e12  # of the preset of that name
    assert (bad.status, bad.tokens_per_s) == (Status.OOM, None)
    assert bad.knobs.block == "x"


def test_none_is_told_where_it_is_a_value_and_untold_elsewhere(tmp_path):
    mapping = MAP | {"columns": MAP["columns"] | {"knob.activation_checkpointing": "recompute"}}
    row = "NVIDIA A100-SXM4-80GB,8,4,2,none,100,81920,fine"
    _, found = imported(
        tmp_path,
        HEADER[:-1] + ",recompute\n" + "".join(f"{row},{word}\n" for word in ("None", "full", "-")),
        mapping,
    )
    assert [trial.knobs.activation_checkpointing for trial in found] == ["none", "full", None]
    assert not any("block" in trial.knobs.settings() for trial in found)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("NVIDIA A100-SXM4-80GB,8,4,2,32,100,655360,fine", "tokens_per_s is 8 times.*number of devices"),
        ("NVIDIA A100-SXM4-80GB,8,4,2,32,100,20480,fine", "one of them lies"),
        ("NVIDIA A100-SXM4-80GB,8,4,2,32,abc,81920,fine", "ms: 'abc' is not what step_time_s is"),
        ("NVIDIA A100-SXM4-80GB,8,4,3,32,100,81920,fine", "does not divide 8 devices"),
        ("NVIDIA A100-SXM4-80GB,12,4,2,32,100,81920,fine", "no whole nodes"),
        ("NVIDIA A100-SXM4-80GB,8,4,2,32,100,81920,odd", "status 'odd' is unknown"),
        ("NVIDIA A100-SXM4-80GB,8,4,2,32,100,81920", "fewer fields"),
        ("NVIDIA A100-SXM4-80GB,8,4,2,32,100,81920,fine,more", "more fields"),
        (",8,4,2,32,100,81920,fine", "no platform"),
    ],
)
def test_what_cannot_be_is_set_aside_with_line_and_reason(tmp_path, row, reason):
    path, (found,) = imported(tmp_path, HEADER + row + "\n")
    assert isinstance(found, SetAside)
    assert (found.file, found.line) == (str(path), 2)
    assert re.search(reason, found.reason), found.reason


def test_milliseconds_labelled_seconds_are_found_out_by_the_throughput(tmp_path):
    lying = MAP | {"units": {}}
    _, (trial,) = imported(tmp_path, HEADER + "NVIDIA A100-SXM4-80GB,8,4,2,32,100,81920,fine\n", lying)
    assert trial.step_time_s == pytest.approx(0.1)
    assert trial.tokens_per_s == pytest.approx(81920)


def test_an_empty_measurement_is_a_failure_not_a_success(tmp_path):
    _, (trial,) = imported(tmp_path, HEADER + "NVIDIA A100-SXM4-80GB,8,4,2,32,,nan,fine\n")
    assert (trial.status, trial.cause) == (Status.CRASH, "no step was measured")


def test_a_row_that_is_there_twice_was_measured_twice_and_is_imported_once(tmp_path):
    row = "NVIDIA A100-SXM4-80GB,8,4,2,32,100,81920,fine\n"
    path, _ = imported(tmp_path, HEADER + row + row)
    store, mapping = TrialStore(tmp_path / "trials"), Mapping.from_mapping(MAP, "map")
    first, second = (
        import_files(Table(mapping), [path], Given(None, mapping.constants), store) for _ in range(2)
    )
    assert (first.taken, second.taken, second.already_there) == (2, 0, 2)


def test_parquet_is_read_like_csv(tmp_path):
    row = {
        "gpu": "NVIDIA A100-SXM4-80GB",
        "gpus": 8,
        "mbs": 4,
        "tp": 2,
        "block": 32,
        "ms": 100.0,
        "tok/s": None,
    }
    pl.DataFrame([row | {"how": "fine"}]).write_parquet(tmp_path / "t.parquet")
    (run,) = Table(Mapping.from_mapping(MAP, "map")).read(tmp_path / "t.parquet")
    trial = complete(run, tmp_path / "t.parquet", "csv", Given(None, MAP["constants"]))
    assert trial.tokens_per_s == pytest.approx(81920)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"columns": {"step_tme_s": "ms"}}, "columns.step_tme_s: is no column"),
        ({"units": {"step_time_s": "fortnight"}}, "fortnight"),
        ({"colums": {}}, "colums"),
    ],
)
def test_a_wrong_mapping_is_one_line(change, problem):
    with pytest.raises(InputError, match=problem):
        Mapping.from_mapping(MAP | change, "map.yaml")


def test_a_table_with_an_unknown_header_asks_for_a_mapping(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="--map"):
        list(Table().read(tmp_path / "t.csv"))


@pytest.mark.parametrize("header", [HEADER.strip(), ",".join(sorted(set(PUBLISHED.columns.values())))])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_bytes_make_it_crash(tmp_path_factory, header, data):
    path = tmp_path_factory.mktemp("noise") / "t.csv"
    path.write_bytes(header.encode() + b"\n" + data.draw(st.binary(max_size=200)))
    mapping = Mapping.from_mapping(MAP, "map") if header == HEADER.strip() else None
    for found in Table(mapping).read(path):
        if not isinstance(found, SetAside):
            complete(found, path, "csv", Given(None, MAP["constants"]))


@settings(max_examples=25)
@given(data=st.data(), end=st.sampled_from(["\n", "\r\n"]))
def test_a_table_that_is_cut_or_still_being_written_gives_no_wrong_row(tmp_path_factory, data, end):
    """Wherever it ends, also within quotes that hold line ends of their own."""
    cells = st.text(st.sampled_from('a,"\n1'), max_size=4)
    words = data.draw(st.lists(cells, min_size=1, max_size=4))
    path = tmp_path_factory.mktemp("cut") / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator=end)
        writer.writerow(HEADER.strip().split(","))
        writer.writerows(["A100-SXM", 8, 4, 2, word, 100, 81920, "fine"] for word in words)
    mapping, content = Mapping.from_mapping(MAP, "map"), path.read_bytes()
    whole = [run.values for run in Table(mapping).read(path)]
    assert len(whole) == len(words)
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        runs = [found for found in Table(mapping).read(path) if not isinstance(found, SetAside)]
        assert [run.values for run in runs] == whole[: len(runs)]


def test_a_last_line_without_an_end_says_so(tmp_path):
    row = "NVIDIA A100-SXM4-80GB,8,4,2,32,100,81920,fine"
    _, (first, last) = imported(tmp_path, HEADER + row + "\n" + row)
    assert first.tokens_per_s == pytest.approx(81920)
    assert (last.line, "has no line end" in last.reason) == (3, True)
    _, (aside,) = imported(tmp_path, HEADER.strip()[:-2])
    assert (aside.line, "its header has no line end" in aside.reason) == (1, True)


@pytest.mark.shared
def test_every_row_of_published_tables_is_accounted_for(tmp_path):
    if not published.data_folder().is_dir():
        pytest.skip("no published measurements: set PRETUNE_SHARED")
    taken = 0
    for path in sorted(published.data_folder().glob("*.csv")):
        account = import_files(Table(), [path], Given(), TrialStore(tmp_path / path.stem))
        rows = pl.read_csv(path, infer_schema_length=0)
        assert account.taken + len(account.set_aside) == rows.height, path.name
        assert all(each.line and each.reason for each in account.set_aside)
        assert json.dumps(account.asdict())
        found, taken = TrialStore(tmp_path / path.stem).frame(), taken + account.taken
        assert (found["status"] == "ok").sum() <= (rows["status"] == "ok").sum()
        assert "no step was measured" not in found["cause"], "a success became a failure"
        assert found["workload.precision"].count() <= rows["precision"].count(), "an unknown became a fact"
    assert taken > 0.98 * 7145
