from __future__ import annotations

import os

import pytest

from pretune.collector.launchers import launcher_for
from pretune.collector.launchers.groups import divided
from pretune.errors import InputError


def test_hosts_are_divided_in_their_order():
    hosts = [{"address": f"10.0.0.{n}", "prefix": ["ssh", f"n{n}"]} for n in range(4)]
    first, second = divided({"hosts": hosts, "warm": False}, 2, "nccl")
    assert first == {"hosts": hosts[:2], "warm": False}
    assert second == {"hosts": hosts[2:], "warm": False}


def test_each_group_sees_its_own_gpus_of_those_that_the_session_may_use(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    groups = divided({"local": {"devices": 4}}, 2, "nccl")
    assert [group["hosts"][0]["devices"] for group in groups] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    groups = divided({"local": {"devices": 4}}, 4, "nccl")
    assert [group["hosts"][0] for group in groups][3] == {"ranks": 1, "devices": "7"}


def test_ranks_on_the_cpu_share_no_core(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 6})
    groups = divided({"local": {"devices": 4}}, 2, "gloo")
    assert [group["hosts"][0]["prefix"][-1] for group in groups] == ["0,1", "2,5"]
    launcher = launcher_for(groups[0], tmp_path, "gloo")
    assert (len(launcher.hosts), launcher.hosts[0].ranks, launcher.hosts[0].interface) == (1, 2, "lo")


@pytest.mark.parametrize(
    ("settings", "groups", "says"),
    [
        ({"local": {"devices": 4}}, 3, "launcher.local.devices: 4 cannot be divided into 3 groups.*use 2"),
        ({"hosts": [{"address": "a"}] * 3}, 2, "hosts: 3 cannot be divided into 2 groups.*use 1"),
        ({"slurm": {"nodes": 4}}, 2, "only the devices of local or hosts can be divided"),
    ],
)
def test_what_cannot_be_divided_is_refused(settings, groups, says):
    with pytest.raises(InputError, match=says):
        divided(settings, groups, "nccl")


def test_more_groups_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(InputError, match="2 groups need a core each, but this machine has 1"):
        divided({"local": {"devices": 2}}, 2, "gloo")
