"""A command's output as a file of whole lines that know when they came."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.collector.timed_log import TimedLog
from pretune.errors import InputError

PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.text("ab\n\r", max_size=5)), max_size=30)


@given(pieces=PIECES)
def test_lines_of_both_streams_stay_whole_and_nothing_is_lost(tmp_path_factory, pieces):
    log = TimedLog(tmp_path_factory.mktemp("log") / "output.log")
    for stream, text in pieces:
        log.write(stream, text.encode())
    log.end(None)
    kept = log.path.read_text().replace("\r", "\n").split("\n")
    said = ["".join(text for stream, text in pieces if stream == each).replace("\r", "\n") for each in (1, 2)]
    assert sorted(filter(None, kept)) == sorted(line for text in said for line in text.split("\n") if line)


def test_a_line_came_when_it_ended(tmp_path):
    log = TimedLog(tmp_path / "output.log")
    log.write(1, b"one\ntw")
    first_s = time.monotonic()
    time.sleep(0.05)
    log.write(1, b"o\nthree\nfour")
    assert log.came_s(1) <= first_s < log.came_s(2) == log.came_s(3)
    assert log.came_s(4) is None
    log.end(None)


def test_a_cut_line_stays_last_and_open_when_the_command_failed(tmp_path):
    log = TimedLog(tmp_path / "output.log")
    log.write(1, b"whole\nthroughput: 12")
    log.end("it ended")
    assert log.path.read_bytes() == b"whole\nit ended\nthroughput: 12"


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path, monkeypatch):
    log = TimedLog(tmp_path / "output.log")
    log._file.close()
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(log, "_file", full)
        log.write(1, b"one\n")
        log.write(1, b"two\n")
        log.end(None)
    assert log.trouble == f"{tmp_path / 'output.log'}: No space left on device"


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "output.log").write_text("yesterday's")
    with pytest.raises(InputError, match="name another log file"):
        TimedLog(tmp_path / "output.log")
