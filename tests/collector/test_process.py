"""Control groups by the files in them, not by the words in their path; locks by who has them open."""

import os

import pytest

from pretune.collector.agent import _oom_kills, clear_stale_locks
from pretune.collector.process import CGROUPS, COUNTS_OOM, LIMITS_CPU, control_groups


@pytest.fixture
def group(tmp_path):
    """A group's folder for rank 0, with these files; returns its name, with the rank left open."""

    def make(name, **files):
        folder = tmp_path / f"{name}-0"
        folder.mkdir()
        for file, text in files.items():
            (folder / file.replace("__", ".")).write_text(text)
        return f"{tmp_path}/{name}-{{local_rank}}"

    return make


def test_what_a_group_limits_is_told_by_its_files(group):
    named = ":".join(
        [
            group("both", cpu__max="max", memory__events="oom_kill 0"),
            group("cpu-in-name-only", cpuset__cpus="0"),
            group("old-quota", cpu__cfs_quota_us="1"),
            group("old-memory", memory__oom_control="oom_kill 0"),
        ]
    )
    assert [path.name for path in control_groups(named, 0, LIMITS_CPU)] == ["both-0", "old-quota-0"]
    assert [path.name for path in control_groups(named, 0, COUNTS_OOM)] == ["both-0", "old-memory-0"]
    assert len(control_groups(named, 0)) == 4
    assert control_groups("", 0) == []


def test_memory_kills_are_counted_in_the_groups_that_count_them(group):
    named = ":".join([group("cpu", cpu__max="max"), group("any", memory__events="low 1\noom_kill 3\n")])
    assert _oom_kills({"env": {CGROUPS: named}, "ranks": 1}) == 3


def test_only_locks_of_our_ops_that_nobody_holds_are_removed(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    stale, held, foreign = (
        cache / "py3_cpu" / name / "lock" for name in ("deepspeed_shm_comm", "cpu_adam", "somebody_elses")
    )
    for lock in (stale, held, foreign):
        lock.parent.mkdir(parents=True)
        lock.touch()
        os.utime(lock, (1e9, 1e9))
    (tmp_path / "link").symlink_to(cache)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "link"))
    with held.open():
        clear_stale_locks()
    assert [lock.exists() for lock in (stale, held, foreign)] == [False, True, True]


def test_a_young_lock_may_be_held_on_another_host(tmp_path, monkeypatch):
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    waited = []
    monkeypatch.setattr("time.sleep", lambda seconds: (waited.append(seconds), lock.unlink()))
    clear_stale_locks()  # its holder is done while we wait
    assert len(waited) == 1
