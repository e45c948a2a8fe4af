"""A store is repaired and merged while others read and write it, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sample_trials import sample_trial
from store_fixtures import ENVIRONMENT

from pretune.datasets import Knobs, TrialStore, upkeep
from pretune.datasets.upkeep import compact, repair
from pretune.errors import StoreError, StoreWarning


def ids(store: TrialStore) -> list[str]:
    return sorted(trial.trial_id for trial in store.trials())


def filled(root: Path, count: int = 6) -> TrialStore:
    store = TrialStore(root)
    for number in range(count):
        store.append(sample_trial(f"t{number}", software={"torch": f"2.{number}"}))
    return store


# -- repair -----------------------------------------------------------------------------------------------
def test_what_cannot_be_read_is_moved_aside_with_its_reason(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = store.files()[2]
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "loose.parquet").write_bytes(b"")
    abandoned = path.with_name(".writing-abc")
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (0, 0))
    path.with_name(".writing-def").write_bytes(b"a writer is at it")
    moved = {Path(each.file).name: Path(each.to) for each in repair(store)}
    assert moved.keys() == {"t2.parquet", "loose.parquet", ".writing-abc"}
    for to in moved.values():
        assert to.exists()
        assert to.is_relative_to(tmp_path / "aside")
        assert to.with_name(f"{to.name}.reason.txt").read_text().startswith(str(tmp_path))
    assert store.validate() == repair(store) == []
    assert ids(store) == ["t0", "t1", "t3", "t4", "t5"]
    assert path.with_name(".writing-def").exists()


def test_a_trial_is_stored_again_where_its_file_was_damaged(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    (path,) = store.files()
    path.write_bytes(b"damaged")
    assert store.append(sample_trial("t0")) == [path]
    assert ids(store) == ["t0"]
    assert (tmp_path / "aside" / path.parent.name / path.name).read_bytes() == b"damaged"


def test_a_file_of_a_newer_pretune_is_no_damage(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    (path,) = store.files()
    table = pq.read_table(path).replace_schema_metadata({"pretune.schema_version": "99"})
    pq.write_table(table, path)
    before = path.read_bytes()
    assert repair(store) == []
    store.append(sample_trial("t0"))
    assert path.read_bytes() == before


# -- compact ----------------------------------------------------------------------------------------------
def test_small_files_become_one_and_go_when_nobody_reads_them_any_more(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before, trials = store.frame(), list(store.trials())
    done = compact(store)
    assert (len(done.merged), done.replaced, done.removed) == (1, 6, 0)
    assert [str(path) for path in store.files()] == done.merged
    assert len(list(tmp_path.rglob("*.parquet"))) == 7
    for _ in range(2):
        assert store.frame().equals(before.select(store.frame().columns))
        assert sorted(store.trials(), key=lambda t: t.trial_id) == trials
        assert store.validate() == []
        compact(store, grace_s=0)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    store.append(sample_trial("new"))
    assert compact(store, grace_s=0).replaced == 2
    assert ids(store) == ["new", *(f"t{n}" for n in range(6))]


def test_a_trial_that_is_appended_again_after_its_file_was_merged_is_read_once(tmp_path: Path) -> None:
    store = filled(tmp_path)
    compact(store, grace_s=0)
    store.append(sample_trial("t0", software={"torch": "2.0"}))
    assert len(store) == 6
    store.append(sample_trial("new"))
    compact(store)
    store.append(sample_trial("t0", software={"torch": "2.0"}))
    compact(store)
    assert ids(store) == ["new", *(f"t{n}" for n in range(6))]
    assert store.validate() == []


def test_what_does_not_go_together_or_cannot_be_read_stays_as_it_is(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    for number, value in enumerate([1, 2, "a", "b"]):
        store.append(sample_trial(f"t{number}", knobs=Knobs(mode=value)))
    (damaged,) = store.append(sample_trial("z"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (theirs,) = store.append(sample_trial("y"))
    pq.write_table(pq.read_table(theirs).append_column("note", [["mine"]]), theirs)
    done = compact(store, grace_s=0)
    assert (len(done.merged), done.replaced) == (2, 4)
    assert damaged.exists()
    assert pq.read_table(theirs)["note"].to_pylist() == ["mine"]
    with pytest.warns(StoreWarning, match=r"z\.parquet"):
        modes = {trial.trial_id: trial.knobs.settings().get("mode") for trial in store.trials()}
    assert modes == {"t0": 1, "t1": 2, "t2": "a", "t3": "b", "y": None}


def test_a_merged_file_that_was_damaged_is_not_believed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (merged,) = compact(store).merged
    Path(merged).write_bytes(Path(merged).read_bytes()[:-5])
    with pytest.warns(StoreWarning, match="merged-"):
        assert ids(store) == [f"t{n}" for n in range(6)]
    assert compact(store, grace_s=0).replaced == 6
    assert store.validate() == []


def test_two_compactions_do_not_run_at_once(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with upkeep._alone(store), pytest.raises(StoreError, match="is being compacted by another process"):
        compact(store)
    assert compact(store).replaced == 6


def test_a_reader_never_sees_less_while_files_are_merged_and_appended(tmp_path: Path) -> None:
    store = filled(tmp_path, 30)
    command = [
        sys.executable,
        "-c",
        "import store_writers_at_once as w; w.append_and_compact()",
        str(tmp_path),
    ]
    worker = subprocess.Popen(command, env=ENVIRONMENT)
    seen, looks = 30, 0
    while worker.poll() is None:
        for look in (lambda: len(store), lambda: store.frame().height, lambda: len(ids(store))):
            found = look()
            assert found >= seen
            seen, looks = found, looks + 1
    assert worker.returncode == 0
    assert looks > 10
    assert ids(store) == sorted([f"t{n}" for n in range(30)] + [f"new{n}" for n in range(20)])
    assert store.validate() == []


def killed(root: Path, moment: int) -> bool:
    """Compact in a process that kills itself just before or after its n-th rename or removal."""
    command = "import store_writers_at_once as w; w.killed_while_compacting()"
    done = subprocess.run([sys.executable, "-c", command, str(root), str(moment)], env=ENVIRONMENT)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


@pytest.mark.slow
def test_a_compaction_that_is_killed_anywhere_loses_and_doubles_nothing(tmp_path: Path) -> None:
    moment = 1
    while killed(filled(tmp_path / str(moment), 4).root, moment):
        store = TrialStore(tmp_path / str(moment))
        for _ in range(2):
            assert ids(store) == [f"t{n}" for n in range(4)], moment
            assert store.validate() == []
            compact(store, grace_s=0)
        assert len(list(store.root.rglob("*.parquet"))) == 1
        moment += 1
    assert moment == 1 + 2 * (1 + 4)  # one file was written, and four were removed
