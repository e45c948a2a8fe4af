"""Control groups by the files in them, not by the words in their path."""

import pytest

from pretune.collector.agent import _oom_kills
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
