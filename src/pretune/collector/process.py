"""Processes: a rank dies with its parent and enters its control groups; what descends from one is ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
PARENT = "PRETUNE_RANK_PARENT"  # the process that a cold rank must not outlive
CGROUPS = "PRETUNE_RANK_CGROUPS"  # colon-separated control-group folders, {local_rank} filled in
TOKENS = "PRETUNE_TOKENS"  # a file of token ids to train on, see TokenFile; synthetic tokens without it
# a control group that limits processor time has one of these files, one that counts memory kills one of those
LIMITS_CPU = ("cpu.max", "cpu.cfs_quota_us")
COUNTS_OOM = ("memory.events", "memory.oom_control")


def die_with_parent(parent: int) -> None:
    """Be killed when the process ``parent`` ends, however it ends (prctl(2), PR_SET_PDEATHSIG).

    Call it first: a parent that was gone before is noticed, and this process exits.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """What descends from this process stays below it when its parent ends (prctl(2), PR_SET_CHILD_SUBREAPER):
    a daemon cannot leave the trial."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def be_first_to_go() -> None:
    """When memory runs out, the kernel is to kill this rank, not the session or somebody's editor."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def control_groups(named: str, local_rank: int | str, having: Collection[str] = ()) -> list[Path]:
    """The folders that ``named`` lists (see ``CGROUPS``); with ``having``, those with one of its files."""
    folders = [Path(name) for name in named.replace("{local_rank}", str(local_rank)).split(":") if name]
    return [folder for folder in folders if not having or any((folder / file).exists() for file in having)]


def enter_control_groups(having: Collection[str] = ()) -> None:
    """Join the groups named in the environment.

    Ranks join after their libraries are imported, so that a memory limit counts what
    training takes, the same in a cold process and in one forked from a warm worker.
    """
    named, local_rank = os.environ.get(CGROUPS, ""), os.environ.get("LOCAL_RANK", "0")
    for group in control_groups(named, local_rank, having):
        (group / "cgroup.procs").write_text(str(os.getpid()))


def oom_kills(group: Path | None = None) -> int:
    """How many processes the kernel has killed for memory: in a control group, or on this machine."""
    if group is None:
        source, key = Path("/proc/vmstat"), "oom_kill"
    elif (group / "memory.oom_control").exists():
        source, key = group / "memory.oom_control", "oom_kill"
    else:
        source, key = group / "memory.events", "oom_kill"
    try:
        lines = source.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it; empty when it is gone."""
    import psutil

    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: list[psutil.Process]) -> None:
    """SIGKILL those that are still there."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_after(processes: list[psutil.Process], grace_s: float) -> None:
    """SIGKILL those that have not ended of themselves within ``grace_s`` seconds."""
    import psutil

    _, alive = psutil.wait_procs(processes, grace_s)
    kill(alive)
