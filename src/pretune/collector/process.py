"""What a rank does with itself before it works: die with its parent, enter its control groups."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
PARENT = "PRETUNE_RANK_PARENT"  # the process that a cold rank must not outlive
CGROUPS = "PRETUNE_RANK_CGROUPS"  # colon-separated control-group folders, {local_rank} filled in
TOKENS = "PRETUNE_TOKENS"  # a file of token ids to train on, see TokenFile; synthetic tokens without it


def die_with_parent(parent: int) -> None:
    """Be killed when the process ``parent`` ends, however it ends (prctl(2), PR_SET_PDEATHSIG).

    Call it first: a parent that was gone before is noticed, and this process exits.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def be_first_to_go() -> None:
    """When memory runs out, the kernel is to kill this rank, not the session or somebody's editor."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def enter_control_groups() -> list[Path]:
    """Join the groups named in the environment; returns them.

    Ranks join after their libraries are imported, so that a memory limit counts what
    training takes, the same in a cold process and in one forked from a warm worker.
    """
    local_rank = os.environ.get("LOCAL_RANK", "0")
    named = os.environ.get(CGROUPS, "").replace("{local_rank}", local_rank)
    groups = [Path(name) for name in named.split(":") if name]
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    return groups


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
