"""The fuzzer finds what breaks the rule, and keeps the file that did."""

from pathlib import Path

import fuzz
import pytest

SOUND = b"iteration 1 | elapsed 2.5\niteration 2 | elapsed 2.5\n"


def test_a_reader_that_raises_is_found_and_its_file_is_kept(tmp_path):
    (tmp_path / "sound").mkdir()
    (tmp_path / "sound" / "a.log").write_bytes(SOUND)

    def read(_name: str, _folder: Path, victim: Path) -> None:
        if b"nan" in victim.read_bytes():
            raise KeyError("nan")

    found = fuzz.Fuzz(read, [("some", tmp_path / "sound")], tmp_path / "attempt")
    with pytest.raises(KeyError):
        fuzz.by_hypothesis(found, seconds=60)
    assert b"nan" in (tmp_path / "attempt" / "a.log").read_bytes()
    assert (tmp_path / "sound" / "a.log").read_bytes() == SOUND


def test_a_reason_of_two_lines_breaks_the_rule(tmp_path, monkeypatch):
    log = tmp_path / "a.log"
    log.write_text("no log\n")
    fuzz.read_import("megatron", tmp_path, log)  # refused in one line
    monkeypatch.setattr(fuzz, "importer", lambda _: lambda: Refusing())
    with pytest.raises(AssertionError, match="more than one line"):
        fuzz.read_import("megatron", tmp_path, log)


class Refusing:
    def sources(self, path):
        raise fuzz.InputError(f"{path}:\nis no log")
