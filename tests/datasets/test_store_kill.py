"""The store under writers that are killed, that run at the same time, and that have no room left."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from sample_trials import sample_trial
from store_fixtures import ENVIRONMENT

from pretune.datasets import TrialStore
from pretune.errors import StoreError

WRITERS = Path(__file__).with_name("store_writers.py")


def run_killed_writers(root: Path, log: Path, rounds: int, kind: str) -> list[str]:
    """The ids that ``append`` returned for, of all writers."""
    command = [sys.executable, str(WRITERS), str(root), str(log), str(rounds), "7", kind]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=100)
    return log.read_text().split()


def damage(store: TrialStore, returned: list[str]) -> list[str]:
    """What a reader would trip over: faults, and trials that were promised and are not there."""
    faults = [str(fault) for fault in store.validate()]
    if faults:
        return faults
    return sorted(set(returned) - {trial.trial_id for trial in store.trials()})


def test_a_killed_writer_damages_and_loses_nothing(tmp_path: Path) -> None:
    returned = run_killed_writers(tmp_path / "store", tmp_path / "log", 60, "atomic")
    assert len(returned) > 20
    assert damage(TrialStore(tmp_path / "store"), returned) == []


def test_without_the_atomic_rename_the_same_check_fails(tmp_path: Path) -> None:
    returned = run_killed_writers(tmp_path / "store", tmp_path / "log", 60, "direct")
    assert damage(TrialStore(tmp_path / "store"), returned) != []


def test_what_a_killed_writer_leaves_behind_is_not_read(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    (path,) = store.append(sample_trial("a"))
    (path.parent / ".writing-0123").write_bytes(path.read_bytes()[:100])
    assert store.validate() == []
    assert len(store) == len(store.frame()) == 1


def test_eight_writers_at_once_store_each_trial_once(tmp_path: Path) -> None:
    program = (
        "import sys; from sample_trials import sample_trial; from pretune.datasets import TrialStore\n"
        "store = TrialStore(sys.argv[1])\n"
        "for n in range(20): store.append(sample_trial(f'both-{n}')); "
        "store.append(sample_trial(f'{sys.argv[2]}-{n}'))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], env=ENVIRONMENT) for name in "abcdefgh"]
    assert [writer.wait(100) for writer in writers] == [0] * 8
    store = TrialStore(tmp_path)
    assert store.validate() == []
    assert len(store) == 9 * 20
    assert not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize("limit", [0, 1000, 5000])
def test_a_full_disk_is_said_and_leaves_the_store_clean(tmp_path: Path, limit: int) -> None:
    store = TrialStore(tmp_path)
    store.append(sample_trial("before"))
    program = (
        "import sys; from sample_trials import sample_trial; from pretune.datasets import TrialStore\n"
        "TrialStore(sys.argv[1]).append(sample_trial('too-much'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "StoreError" in done.stderr
    assert "too-much.parquet: cannot be written (File too large); nothing was added" in done.stderr
    assert store.validate() == []
    assert [trial.trial_id for trial in store.trials()] == ["before"]
    assert not list(tmp_path.rglob(".writing-*"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/platform=two-ranks/a\.parquet: cannot be written"):
        TrialStore(tmp_path / "file").append(sample_trial("a"))
