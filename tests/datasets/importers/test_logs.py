"""What holds for every importer of logs: a cut log, a strange one, a huge one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretune.datasets.importers.base import Importer, Run, SetAside
from pretune.datasets.importers.deepspeed_autotuning import DeepSpeedAutotuning
from pretune.datasets.importers.deepspeed_log import DeepSpeedLog
from pretune.datasets.importers.lines import MAX_LINE, numbered
from pretune.datasets.importers.megatron import MegatronLog
from pretune.datasets.importers.megatron_bridge import MegatronBridgeTable
from pretune.datasets.importers.mllog import MLLog
from pretune.datasets.importers.nemo import NeMoLog
from pretune.datasets.importers.runlog import KEPT, Record, Steady
from pretune.datasets.importers.torchtitan import TorchTitanLog
from pretune.errors import InputError

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = {
    "deepspeed": DeepSpeedLog,
    "megatron": MegatronLog,
    "megatron-bridge": MegatronBridgeTable,
    "mlperf": MLLog,
    "nemo": NeMoLog,
    "torchtitan": TorchTitanLog,
}
LOGS = [(cls(), path) for name, cls in FOLDERS.items() for path in sorted((GOLDEN / name).iterdir())]
ids = [path.name for _, path in LOGS]
# what may differ while a log grows
GROWING = ("status", "cause", "loss_last", "step_time_s", "window_times_s", "warmup_windows", "counter.")
GROWING += ("tokens_per_s", "peak_memory")
STEADY = 0.25  # the golden logs' own spread, with a pause where every window has one


def read(importer: Importer, path: Path) -> list[Run | SetAside]:
    with contextlib.suppress(InputError):  # cut before the first line that shows its format
        return list(importer.read(path))
    return []


def never_wrong(part: list[Run | SetAside], whole: dict[int | None, list[Run]]) -> None:
    """Every run of a cut log is a run of the whole one, with no figure that it does not have."""
    for run in part:
        if isinstance(run, SetAside):
            continue
        same = [each for each in whole[run.line] if each.key == run.key] or whole[run.line]
        full = same[0].values
        for column, value in run.values.items():
            if not column.startswith(GROWING):
                assert full[column] == value, column
        for column in ("step_time_s", "tokens_per_s", "tokens_per_s_per_device"):
            if column in run.values and column in full:
                assert run.values[column] == pytest.approx(full[column], rel=STEADY), column


def by_line(outcomes: list[Run | SetAside]) -> dict[int | None, list[Run]]:
    lines: dict[int | None, list[Run]] = {}
    for run in outcomes:
        if isinstance(run, Run):
            lines.setdefault(run.line, []).append(run)
    return lines


@pytest.mark.parametrize(("importer", "path"), LOGS, ids=ids)
def test_a_log_cut_at_any_line_gives_no_wrong_row(importer, path, tmp_path):
    whole = by_line(read(importer, path))
    text, cut = path.read_bytes(), tmp_path / path.name
    for end in [i + 1 for i, byte in enumerate(text) if byte == ord("\n")]:
        cut.write_bytes(text[:end])
        never_wrong(read(importer, cut), whole)


@pytest.mark.parametrize(("importer", "path"), LOGS, ids=ids)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_cut_inside_a_line_is_as_if_that_line_were_not_there(importer, path, tmp_path, data):
    text, cut = path.read_bytes(), tmp_path / path.name
    line = data.draw(st.sampled_from(text.splitlines(keepends=True)))
    begin = text.index(line)
    end = begin + data.draw(st.integers(0, max(len(line) - 1, 0)))
    cut.write_bytes(text[:end])
    runs = [run for run in read(importer, cut) if isinstance(run, Run)]
    expected = []
    # a line of JSON proves itself whole even without its line end
    for stop in (begin, begin + len(line)) if isinstance(importer, MLLog) else (begin,):
        cut.write_bytes(text[:stop])
        expected.append([run for run in read(importer, cut) if isinstance(run, Run)])
    assert runs in expected


PIECES = [
    b"nan",
    b"1e",
    b",",
    b"-1",
    b"1e999",
    b"9" * 5000,
    b"\xff\xfe",
    b"\x00",
    b"{",
    b"[" * 9000,
    b"|",
    b"\r",
]


@pytest.mark.parametrize(("importer", "path"), LOGS, ids=ids)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_in_a_log_is_an_exception(importer, path, tmp_path, data):
    text, strange = bytearray(path.read_bytes()), tmp_path / path.name
    for _ in range(data.draw(st.integers(1, 6))):
        at, width = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 12))
        text[at : at + width] = data.draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=8)))
    strange.write_bytes(text)
    for run in read(importer, strange):
        if isinstance(run, Run):
            assert 0 < run.values.get("step_time_s", 1.0) < float("inf")


@pytest.mark.parametrize(("importer", "path"), LOGS, ids=ids)
def test_what_is_filled_is_declared_and_keys_do_not_change(importer, path):
    outcomes, again = read(importer, path), read(importer, path)
    runs = [run for run in outcomes if isinstance(run, Run)]
    assert {column for run in runs for column in run.values} <= set(importer.fills)
    assert outcomes == again
    assert len({run.key for run in runs}) == len(runs)


def test_the_autotuner_declares_what_it_fills():
    importer = DeepSpeedAutotuning()
    runs = [run for run in importer.read(GOLDEN / "deepspeed-autotuning") if isinstance(run, Run)]
    assert {column for run in runs for column in run.values} <= set(importer.fills)


@pytest.mark.parametrize(("importer", "path"), LOGS, ids=ids)
def test_windows_line_ends_change_nothing(importer, path, tmp_path):
    windows = tmp_path / path.name
    windows.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert [vars(each) for each in read(importer, windows)] == [
        vars(each) if isinstance(each, Run) else vars(each) | {"file": str(windows)}
        for each in read(importer, path)
    ]


@pytest.mark.parametrize("cls", [*FOLDERS.values()])
def test_a_file_of_another_kind_is_refused_in_one_line(cls, tmp_path):
    (tmp_path / "x.log").write_text("hello\nworld\n")
    with pytest.raises(InputError, match=r"x\.log: (is no|has no)"):
        list(cls().read(tmp_path / "x.log"))
    with pytest.raises(InputError, match=r"nothing\.log: cannot be read"):
        list(cls().read(tmp_path / "nothing.log"))


# -- lines and windows --------------------------------------------------------------------
def test_long_lines_are_bounded_and_do_not_shift_the_numbers(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"first\n" + b"word " * MAX_LINE + b"\nthird\rpart\nunfinished 12")
    lines = list(numbered(log))
    assert [(number, text[:6]) for number, text in lines] == [
        (1, "first"),
        (2, "word w"),
        (3, "third"),
        (3, "part"),
    ]
    assert len(lines[1][1]) <= MAX_LINE
    assert list(numbered(log, tail=True))[-1] == (4, "unfinished 12")


@given(
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=40),
    st.integers(0, 8),
)
def test_steady_windows_are_the_log_s_own_and_their_mean_is_the_step_time(times, slow):
    steady = Steady()
    for index, seconds in enumerate(times):
        steady.add(Record(seconds * (50 if index < slow else 1)), line=index)
    values, span = steady.values(), steady.span()
    assert values or len(times) <= 8
    if len(times) < 3 or not values:  # all of a short run may be its warm-up
        assert (values, span) == ({}, None)
        return
    assert (span.after, span.to) == (values["warmup_windows"] - 1, len(times) - 1)
    kept = values["window_times_s"]
    assert values["warmup_windows"] + len(kept) == len(times)
    assert values["step_time_s"] == pytest.approx(sum(kept) / len(kept))
    assert (span.windows, span.seconds) == (len(kept), pytest.approx(sum(kept)))


def test_a_long_run_keeps_few_times_and_the_mean_of_all():
    steady = Steady()
    for index in range(3 * KEPT):
        steady.add(Record(1.0 if index < KEPT else 2.0), line=index)
    values = steady.values()
    assert (steady.span().to, steady.span().windows, len(steady.lines)) == (
        3 * KEPT - 1,
        3 * KEPT - 2,
        KEPT + 1,
    )
    assert len(values["window_times_s"]) == KEPT - 2
    assert values["step_time_s"] == pytest.approx((KEPT - 2 + 2 * 2 * KEPT) / (3 * KEPT - 2))


# -- streaming ----------------------------------------------------------------------------
MEASURE = """
import resource, sys
from pathlib import Path
from pretune.datasets.importers.megatron import MegatronLog
from pretune.datasets.importers.torchtitan import TorchTitanLog
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(run,) = MegatronLog().read(Path(sys.argv[1]))
print(run.values["step_time_s"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.long
def test_a_huge_log_takes_little_memory(tmp_path):
    log, count = tmp_path / "huge.log", 0
    with log.open("w") as file:
        file.write("one line of a megabyte " * 50_000 + "\n")
        while file.tell() < 100_000_000:
            for _ in range(20):
                count += 1
                file.write(
                    f" iteration {count:8d}/ 9000000 | elapsed time per iteration (ms): 2000.0 | "
                    f"global batch size:    64 | lm loss: 5.000000E+00 |\n"
                )
            file.write("noise of a rank that talks too much " * 200 + "\n")
    read = subprocess.run(
        [sys.executable, "-c", MEASURE, str(log)], capture_output=True, text=True, check=True
    )
    step, kilobytes = read.stdout.split()
    assert float(step) == pytest.approx(2.0)
    assert int(kilobytes) * (1024 if sys.platform != "darwin" else 1) < 100 * 2**20
