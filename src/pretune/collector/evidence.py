"""From what a trial left behind to its status and cause: exit codes, exceptions, the kernel's kills.

Nothing is read out of logs. In a trial's folder:

    spec.json      the sheet that every rank read
    progress.json  the phase and the window that rank 0 is at
    rank-R.json    how rank R ended, written by itself (absent when it was killed); of a script: node R
    result.json    what rank 0 measured (only when it measured to the end)
    memory.json    rank 0's memory in use while it measured: [Unix seconds, bytes], a second apart or more
    stop.json      present when whoever launched it wants it to end with what it has measured
    ended.json     what the launcher saw: exit codes, why it killed, lost hosts, the kernel's memory kills
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretune.datasets.durable import whole_file
from pretune.datasets.trial import Status, Trial, TrialSpec

STOP, MEMORY = "stop.json", "memory.json"
CHECKPOINT, CHECKPOINTS = "checkpoint", "checkpoints.json"  # the last one itself, and how long each took
_MEMORY = tuple(f"peak_memory_{kind}_bytes" for kind in ("allocated", "reserved", "device"))
_KEPT = ("hosts", "software", "missing", "startup_s", "loss_first", "loss_last", *_MEMORY)
# a rank that lost its peer crashes too: what explains more comes first
_TELLING = [Status.OOM, Status.DIVERGED, Status.INVALID, Status.CRASH]


@dataclass
class Ending:
    """What the launcher saw of a trial's end."""

    began: float  # seconds since the epoch
    wall_s: float
    returncodes: dict[int, int] = field(default_factory=dict)
    oom_kills: int = 0
    killed_because: str | None = None
    killed_ranks: list[int] = field(default_factory=list)
    warm: bool | None = None
    interrupted_because: str | None = None  # a host was lost
    scheduler_job: str | None = None

    def save(self, folder: Path) -> None:
        write_json(folder / "ended.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Ending | None:
        found = read_json(folder / "ended.json")
        if found is None:
            return None
        found["returncodes"] = {int(rank): code for rank, code in found["returncodes"].items()}
        return cls(**found)


def judge(spec: TrialSpec, folder: Path, ending: Ending) -> Trial:
    """The trial record, with status and cause found from the evidence in ``folder``."""
    status, cause = status_of(folder, ending)
    result = read_json(folder / "result.json") or {}
    ranks = _ranks(folder)
    hosts = [rank["host"] for rank in ranks if "host" in rank]
    measured = _of_failure(ranks, result)
    if status is Status.OK:  # what a script prints does not tell where it ran
        measured = result | {"hosts": result.get("hosts") or hosts}
    return Trial.model_validate(
        {
            **spec.model_dump(),
            **measured,
            "created_at": datetime.fromtimestamp(ending.began, UTC),
            "wall_s": ending.wall_s,
            "warm": ending.warm,
            "scheduler_job": ending.scheduler_job,
            "status": status,
            "cause": cause,
        }
    )


def _of_failure(ranks: list[dict[str, Any]], result: dict[str, Any]) -> dict[str, Any]:
    """What is known of a trial without a throughput, from the ranks that could still write."""
    memory = {
        name: max(known) for name in _MEMORY if (known := [r[name] for r in ranks if r.get(name) is not None])
    }
    hosts = [rank["host"] for rank in ranks if "host" in rank]
    software: dict[str, str] = next((rank["software"] for rank in ranks if rank.get("software")), {})
    kept = {name: result[name] for name in _KEPT if name in result}
    return {"hosts": hosts, "software": software, **memory, **kept}


def _ranks(folder: Path) -> list[dict[str, Any]]:
    return [found for path in sorted(folder.glob("rank-*.json")) if (found := read_json(path))]


def status_of(folder: Path, ending: Ending) -> tuple[Status, str | None]:
    """The status of an ended trial and its cause in words (None for ``ok``)."""
    failed = [rank for rank in _ranks(folder) if rank.get("status", "ok") != "ok"]
    failed.sort(key=lambda rank: (_TELLING.index(Status(rank["status"])), rank.get("time", 0.0)))
    if failed and failed[0]["status"] == "oom":
        return Status.OOM, _exception(failed[0])
    killed = {rank for rank, code in ending.returncodes.items() if code == -signal.SIGKILL}
    killed -= set(ending.killed_ranks)  # by us, after another rank had failed
    if killed and ending.oom_kills and not ending.killed_because:
        return (
            Status.OOM,
            f"the kernel killed rank {min(killed)} for memory ({ending.oom_kills} kills counted)",
        )
    if failed and failed[0]["status"] in {"diverged", "invalid"}:
        return Status(failed[0]["status"]), _exception(failed[0])
    if ending.interrupted_because:
        return Status.INTERRUPTED, ending.interrupted_because
    if ending.killed_because:
        return Status.TIMEOUT, ending.killed_because
    bad = [(rank in ending.killed_ranks, rank, code) for rank, code in ending.returncodes.items() if code]
    # the others' exceptions only say that their peer is gone; a lost peer can itself make a library abort
    broken = [each for each in bad if not each[0] and each[2] < 0 and each[2] != -signal.SIGABRT]
    if failed and not broken:
        return Status.CRASH, _exception(failed[0])
    if bad:
        _, rank, code = min(broken or bad)
        return Status.CRASH, f"rank {rank} {_how(code)}"
    if not (read_json(folder / "result.json") or {}).get("tokens_per_s_per_device"):
        said = [rank["silent"] for rank in _ranks(folder) if rank.get("silent")]
        return Status.CRASH, next(iter(said), "every rank exited with code 0, yet none measured anything")
    return Status.OK, None


def _exception(rank: dict[str, Any]) -> str:
    if "cause" in rank:  # a script's, in its own words
        return str(rank["cause"])[:500]
    first_line = next(iter(str(rank.get("message", "")).strip().splitlines()), "")
    return f"rank {rank['rank']}: {rank.get('exception')}: {first_line}"[:500]


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def write_json(path: Path, data: Any, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` as a whole: a reader sees the old file or the new one.

    ``durable``: on disk on return. Progress needs no such promise, nor its cost in a measured window.
    Raises :class:`OSError` when it cannot be written; the old file then stays.
    """
    with whole_file(path, durable) as file:
        file.write(json.dumps(data).encode())


def read_json(path: Path) -> Any:
    """The parsed file, or None when it is absent or was cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
