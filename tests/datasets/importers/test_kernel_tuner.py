import json
import math
from pathlib import Path

import numpy as np
import pytest

from pretune.datasets import Accelerator, Platform
from pretune.datasets.importers import json_stream
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given
from pretune.datasets.importers.kernel_tuner import KernelTuner, import_tables
from pretune.datasets.tuning_table import SPEED, TuningTables
from pretune.errors import InputError, StoreError
from pretune.model import NoPhysics, TransferSurrogate

GOLDEN = Path(__file__).parent / "golden" / "kernel-tuner"
OPEN, CLOSED, T4 = (GOLDEN / name for name in ("open_cache.json", "closed_indented.json", "stencil.t4.json"))
POD = Given(Platform(name="nine", accelerator=Accelerator(name="Imagined GPU 9"), devices_per_node=1))


def runs(path):
    return [found for found in KernelTuner().read(path) if isinstance(found, Run)]


def test_a_cache_in_use_says_times_in_seconds_and_what_failed():
    first, *_, failed, refused, invalid = [run.values for run in runs(OPEN)]
    assert (first["accelerator.name"], first["kernel"], first["problem"]) == (
        "Imagined GPU 9",
        "stencil",
        "[512, 512]",
    )
    assert first["time_s"] == pytest.approx(0.81e-3)
    assert first["counter.nvml_power"] == 94
    assert (first["compile_s"], first["benchmark_s"]) == pytest.approx((0.30125, 0.0045))
    knobs = {name: value for name, value in first.items() if name.startswith("knob.")}
    assert knobs == {
        "knob.block_size_x": 32,
        "knob.tile": 1,
        "knob.use_shared": 0,
        "knob.vector": "float2",
    }
    assert [run["status"] for run in (failed, refused, invalid)] == ["crash", "crash", "invalid"]
    assert all(run["cause"] and "time_s" not in run for run in (failed, refused, invalid))


def test_a_time_in_another_unit_is_set_aside_by_line():
    (aside,) = [found for found in KernelTuner().read(OPEN) if isinstance(found, SetAside)]
    assert OPEN.read_text().splitlines()[aside.line - 1].startswith('"128,4,0,float2"')
    assert "time 520 lies outside its own times" in aside.reason


def test_a_time_of_1e20_is_a_failure():
    last = runs(CLOSED)[-1].values
    assert (last["status"], "time_s" in last) == ("crash", False)


def test_a_t4_file_says_the_same_as_the_cache():
    for one, other in zip(runs(T4), runs(OPEN), strict=True):
        same = {"kernel", "accelerator.name", "problem"}
        assert {k: v for k, v in one.values.items() if k not in same} == {
            k: v for k, v in other.values.items() if k not in same
        }


def test_a_device_that_no_file_names_is_the_platform_s(tmp_path):
    tables = TuningTables(tmp_path)
    unnamed = import_tables(KernelTuner(), [T4], Given(), tables)
    assert (unnamed.taken, {aside.reason for aside in unnamed.set_aside}) == (
        0,
        {"does not name its device; give --platform"},
    )
    assert import_tables(KernelTuner(), [T4], POD, tables).taken == 6
    assert set(tables.frame()["platform.name"]) == {"nine"}
    other = import_tables(KernelTuner(), [CLOSED], POD, tables)
    assert other.taken == 0
    assert "ran on Imagined GPU 7" in other.set_aside[0].reason


def test_the_same_files_twice_add_nothing_and_a_cache_that_grew_adds_its_new_entries(tmp_path):
    tables, cache = TuningTables(tmp_path / "store"), tmp_path / "cache.json"
    data = OPEN.read_bytes()
    cache.write_bytes(data[: data.index(b'\n"256,4,1')])
    assert import_tables(KernelTuner(), [cache], Given(), tables).taken == 3
    cache.write_bytes(data)
    grown = import_tables(KernelTuner(), [tmp_path], Given(), tables)
    assert (grown.taken, grown.already_there, len(grown.set_aside)) == (3, 3, 1)
    again = import_tables(KernelTuner(), [cache, cache], Given(), tables)
    assert (again.taken, again.already_there) == (0, 12)
    assert len(tables.frame("stencil")) == 6


@pytest.mark.parametrize("chunk", [7, 2**20])
@pytest.mark.parametrize("path", [OPEN, CLOSED, T4], ids=lambda path: path.name)
def test_a_file_cut_anywhere_gives_no_run_that_the_whole_one_has_not(path, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_CHUNK", chunk)  # every boundary, too
    whole = [(run.line, run.values) for run in runs(path)]
    data, cut = path.read_bytes(), tmp_path / path.name
    most = 0
    for end in range(0, len(data), 13):
        cut.write_bytes(data[:end])
        try:
            found = list(KernelTuner().read(cut))
        except InputError:
            assert most == 0  # only before the first entry
            continue
        part = [(run.line, run.values) for run in found if isinstance(run, Run)]
        assert part == whole[: len(part)]
        assert all("time 520" in aside.reason for aside in found if isinstance(aside, SetAside))
        most = max(most, len(part))
    assert most >= len(whole) - 1


def test_a_broken_entry_costs_itself(tmp_path):
    cache = tmp_path / "cache.json"
    lines = OPEN.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith('"64,2'))
    lines[at] = lines[at].replace('"tile": 2', '"tile" 2')
    cache.write_text("\n".join(lines))
    found = list(KernelTuner().read(cache))
    assert [run.line for run in found if isinstance(run, Run)] == [at, at + 2, at + 3, at + 4, at + 5]
    assert [each.line for each in found if isinstance(each, SetAside)] == [at + 1, at + 6]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "has no"),
        ("", "has no"),
        ('{"device_name": x, "cache": {', "header is no JSON"),
    ],
)
def test_another_file_is_refused(text, why, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=why):
        runs(tmp_path / "a.json")


def test_what_no_entry_can_be_is_set_aside(tmp_path):
    for odd in (
        '"1": 5',
        '"1": {"x": ' + "[" * 100000,
        '"1": {"x": 1' + "0" * 5000 + "}",
        '"1": {"y": 1}',
        "5",
    ):
        (tmp_path / "a.json").write_text('{"tune_params_keys": ["x"], "cache": {' + odd + "," + " " * 20)
        (aside,) = KernelTuner().read(tmp_path / "a.json")
        assert isinstance(aside, SetAside)


def test_names_that_are_none_cost_their_entries(tmp_path):
    (tmp_path / "a.json").write_text('{"tune_params_keys": ["x", {}], "cache": {"1": {"x": 1, "time": 2.0}}}')
    (aside,) = KernelTuner().read(tmp_path / "a.json")
    assert "tune_params_keys" in aside.reason
    result = {"configuration": {"x": 1}, "measurements": [{"name": {}}, {"name": "time", "value": 2.0}]}
    (tmp_path / "a.json").write_text(json.dumps({"results": [result]}))
    (run,) = KernelTuner().read(tmp_path / "a.json")
    assert run.values["time_s"] == pytest.approx(2e-3)


def cache_of(path, device, slow):
    """A cache of 144 configurations; ``slow`` is what the device makes of shared memory."""
    knobs = [(b, t, u) for b in range(6) for t in range(6) for u in range(4)]
    header = {"device_name": device, "kernel_name": "k", "tune_params_keys": ["b", "t", "u"]}
    rows = {
        f"{b},{t},{u}": {
            "b": b,
            "t": t,
            "u": u,
            "time": math.exp(0.4 * b - 0.3 * t + slow * (u - 1) ** 2 + 0.3 * (b * t % 3)),
        }
        for b, t, u in knobs
    }
    path.write_text(json.dumps({**header, "cache": rows}))


def test_a_surrogate_without_physics_learns_from_the_tables_of_another_device(tmp_path):
    tables = TuningTables(tmp_path / "store")
    for device, slow in (("old", 0.1), ("new", 0.15)):
        cache_of(tmp_path / f"{device}.json", device, slow)
    import_tables(KernelTuner(), [tmp_path], Given(), tables)
    frame = tables.frame("k")
    target = frame.filter(frame["platform.name"] == "new").sample(fraction=1.0, shuffle=True, seed=0)
    known, rest = target[:8], target[8:]
    source = frame.filter(frame["platform.name"] == "old")

    def error(learned):
        said = TransferSurrogate("new", NoPhysics()).fit(learned).predict(rest.drop(SPEED, "time_s"))
        return float(np.median(np.abs(said.mean / rest[SPEED].to_numpy() - 1)))

    assert error(source.vstack(known)) < 0.5 * error(known)


def test_a_damaged_table_is_named(tmp_path):
    tables = TuningTables(tmp_path)
    import_tables(KernelTuner(), [OPEN], Given(), tables)
    (file,) = (tmp_path / "tables").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StoreError, match=file.name):
        tables.frame()
