"""One agent per host: starts the ranks of a trial there, and reports how each of them ended.

The launcher holds the agent's standard input. Each line in is a JSON command, each line
out a JSON event. When the input ends, because the launcher's process is gone in whatever
way, the agent kills every rank and exits: no trial outlives its session, also over ssh.

    in   {"run": id, "module": m, "folder": f, "ranks": n, "env": {...}, "cold": c}
                                                                           start n ranks of m.run(f)
         {"kill": id}                                                      end them all
         {"port": true}                                                    a free TCP port of this host
    out  {"ready": seconds}                                                imported, ops built
         {"ended": id, "returncodes": {"rank": code}, "oom_kills": k, "killed": [rank]}
         {"port": number}
         {"error": line}                                                        why it can run nothing

A *cold* agent starts every trial through torchrun's own library call. A *warm* one has
imported torch and the framework, and forks: a fresh process for every rank, without the
seconds that importing takes. On a GPU only cold is possible once CUDA was initialised.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pretune.collector.evidence import read_json
from pretune.collector.process import (
    CGROUPS,
    COUNTS_OOM,
    be_first_to_go,
    control_groups,
    die_with_parent,
    family,
    kill,
    oom_kills,
)
from pretune.collector.rank import leave_after
from pretune.errors import LaunchError

_GRACE_S = 3.0  # after one rank failed, the others may write what they know
_OPS = ("deepspeed_shm_comm", "fused_adam", "cpu_adam")  # DeepSpeed's, built before or in a trial
_LOCK_S = 10.0  # loading a built op, on another host, holds its lock for less


@dataclass
class Run:
    """The ranks of one trial on this host."""

    command: dict[str, Any]
    processes: dict[int, int]  # global rank -> pid
    returncodes: dict[int, int] = field(default_factory=dict)
    killed: list[int] = field(default_factory=list)  # ranks that ran when we killed
    failed_at: float | None = None
    oom_kills_before: int = 0


def main() -> None:
    agent = Agent(warm="--warm" in sys.argv[1:])
    try:
        agent.serve()
    except LaunchError as error:
        agent.say(error=str(error))
        sys.exit(1)


class Agent:
    def __init__(self, warm: bool) -> None:
        self.warm = warm
        self.runs: dict[str, Run] = {}
        self.torchruns: dict[int, subprocess.Popen[bytes]] = {}
        self.events = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever a library prints must not look like an event

    def say(self, **event: Any) -> None:
        self.events.write(json.dumps(event) + "\n")

    def serve(self) -> None:
        begun = time.monotonic()
        prepare(self.warm)
        self.say(ready=round(time.monotonic() - begun, 3))
        os.set_blocking(0, False)
        selector = selectors.DefaultSelector()
        selector.register(0, selectors.EVENT_READ)
        pending = b""
        while True:
            if selector.select(timeout=0.05):
                chunk = os.read(0, 1 << 16)
                if not chunk:
                    break
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))
            self.reap()
        for run_id in list(self.runs):
            self.kill(run_id)

    def obey(self, command: dict[str, Any]) -> None:
        if "run" in command:
            self.start(command)
        elif "kill" in command:
            self.kill(command["kill"])
        elif "port" in command:
            self.say(port=free_port())

    def start(self, command: dict[str, Any]) -> None:
        if not Path(command["folder"]).is_dir():
            raise LaunchError(
                f"{command['folder']} is not there; --out must be a folder that every host sees"
            )
        clear_stale_locks()
        run = Run(command, {}, oom_kills_before=_oom_kills(command))
        start = self._torchrun if command["cold"] else self._fork
        run.processes = start(command)
        self.runs[command["run"]] = run

    def _fork(self, command: dict[str, Any]) -> dict[int, int]:
        environment = command["env"]
        processes = {}
        for local_rank, rank in enumerate(_ranks_here(command)):
            mine = {**environment, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                leave_after(partial(self._be_a_rank, parent, command, mine))
            processes[rank] = pid
        return processes

    def _be_a_rank(self, parent: int, command: dict[str, Any], environment: Mapping[str, str]) -> int:
        """In the forked child: become the rank, and run it; returns its exit code."""
        die_with_parent(parent)
        be_first_to_go()
        os.setsid()
        log = Path(command["folder"]) / f"rank-{environment['RANK']}.log"
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, out), (2, out)):
            os.dup2(source, target)
        os.environ.update(environment)
        code: int = importlib.import_module(command["module"]).run(Path(command["folder"]))
        return code

    def _torchrun(self, command: dict[str, Any]) -> dict[int, int]:
        folder = Path(command["folder"])
        node = command["env"]["GROUP_RANK"]
        with (folder / f"node-{node}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pretune.collector.torchrun", json.dumps(command), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **command["env"]},
                start_new_session=True,
            )
        self.torchruns[process.pid] = process  # dropped, it could be reaped behind our back
        return {-1: process.pid}

    def reap(self) -> None:
        """Collect the ranks that ended; report a run when its last one did."""
        for run_id, run in list(self.runs.items()):
            for rank, pid in list(run.processes.items()):
                code = self._exit_code(pid)
                if code is not None:
                    del run.processes[rank]
                    self._ended(run, rank, code)
            if run.failed_at and time.monotonic() - run.failed_at > _GRACE_S:
                kill_ranks(run)
            if not run.processes:
                del self.runs[run_id]
                kills = _oom_kills(run.command) - run.oom_kills_before
                self.say(ended=run_id, returncodes=run.returncodes, oom_kills=kills, killed=run.killed)

    def _exit_code(self, pid: int) -> int | None:
        if pid in self.torchruns:
            code = self.torchruns[pid].poll()
            if code is not None:
                del self.torchruns[pid]
            return code
        ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def _ended(self, run: Run, rank: int, code: int) -> None:
        if rank >= 0:
            run.returncodes[rank] = code
        else:
            _torchrun_ended(run, code)
        if code and run.failed_at is None:
            run.failed_at = time.monotonic()

    def kill(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        if run is None:
            return
        kill_ranks(run)
        while run_id in self.runs:
            self.reap()
            time.sleep(0.01)


def prepare(warm: bool) -> None:
    """Import what every rank needs (warm), and build DeepSpeed's CPU op before any trial waits for it.

    A trial that is killed while an op is built leaves a lock that hangs the next one, so
    the op is built here, under a lock that the kernel releases.
    """
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        build_deepspeed_op()
    if warm:
        from pretune.collector.training.run import load

        with contextlib.suppress(ModuleNotFoundError):  # plain torch trials need no DeepSpeed
            load("deepspeed")
        if os.environ.get("DS_ACCELERATOR") == "cpu":
            load_deepspeed_op()  # forks find it loaded, and take no lock


def build_deepspeed_op() -> None:
    """Build the shared-memory op once per machine and user, clearing a stale lock.

    Raises :class:`LaunchError` when it cannot be built.
    """
    import fcntl

    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pretune"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "deepspeed-op.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = cache / f"deepspeed-op.{_deepspeed_version()}.built"
        if not stamp.exists():
            code = "from pretune.collector.agent import load_deepspeed_op; load_deepspeed_op()"
            built = subprocess.run([sys.executable, "-c", code], check=False, stdin=subprocess.DEVNULL)
            if built.returncode:
                raise LaunchError(
                    "DeepSpeed's extension cannot be built: install g++ and Python's headers (python3-dev)"
                )
            stamp.touch()


def load_deepspeed_op() -> None:
    """Load (and, the first time, compile) the op that DeepSpeed loads in every CPU rank."""
    try:
        from deepspeed.accelerator import get_accelerator
    except ModuleNotFoundError:  # plain torch trials need no DeepSpeed
        return
    clear_stale_locks()
    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is None or not builder.is_compatible(verbose=False):
        return
    builder.load(verbose=False)


def clear_stale_locks() -> None:
    """Remove torch's locks on the ops that trials build which no process has open: their maker was killed.

    A process on another host that shares this cache cannot be seen: a young lock gets some seconds.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_extensions"
    cache = Path(os.environ.get("TORCH_EXTENSIONS_DIR", cache))
    for lock in (lock for op in _OPS for lock in (*cache.glob(f"{op}/lock"), *cache.glob(f"*/{op}/lock"))):
        with contextlib.suppress(FileNotFoundError):  # its holder removed it
            while not _is_open(lock) and time.time() - lock.stat().st_mtime < _LOCK_S:
                time.sleep(0.5)
            if not _is_open(lock):
                lock.unlink()


def _is_open(path: Path) -> bool:
    """Whether any process of this machine has the file open, by whatever name."""
    wanted = path.stat()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.path.samestat(descriptor.stat(), wanted):
                return True
    return False


def _deepspeed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{version('deepspeed')}-{version('torch')}"
    except PackageNotFoundError:
        return "none"


def _oom_kills(command: dict[str, Any]) -> int:
    named = command["env"].get(CGROUPS, "")
    ranks = range(command["ranks"])
    groups = {group for rank in ranks for group in control_groups(named, rank, COUNTS_OOM)}
    return sum(map(oom_kills, groups)) if groups else oom_kills()


def _torchrun_ended(run: Run, code: int) -> None:
    """What torchrun wrote of its ranks; when it was killed before, its own exit code stands for theirs."""
    found = read_json(Path(run.command["folder"]) / f"node-{run.command['env']['GROUP_RANK']}.json")
    if found:
        run.returncodes = {int(rank): value for rank, value in found["returncodes"].items()}
        run.killed = found["killed"]
    else:
        run.returncodes = dict.fromkeys(_ranks_here(run.command), code)


def _ranks_here(command: dict[str, Any]) -> range:
    first = int(command["env"]["GROUP_RANK"]) * command["ranks"]
    return range(first, first + command["ranks"])


def kill_ranks(run: Run) -> None:
    """End what still runs of it here, and note which ranks that were."""
    for rank, pid in run.processes.items():
        ranks = [rank] if rank >= 0 else _ranks_here(run.command)
        run.killed += [each for each in ranks if each not in run.killed]
        kill_tree(pid)


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all that descend from it; a child that this misses dies with its parent."""
    kill(family(pid))


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
