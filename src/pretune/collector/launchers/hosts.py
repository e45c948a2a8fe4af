"""Trials on a list of hosts: one agent per host, reached by a command prefix (``ssh host`` and the like)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from pydantic import PositiveInt

from pretune.collector.evidence import Ending, judge, read_json, write_json
from pretune.collector.launchers.base import Handle, Launcher
from pretune.collector.process import CGROUPS, TOKENS
from pretune.datasets.spec import Spec
from pretune.datasets.trial import Trial, TrialSpec
from pretune.errors import InputError, LaunchError

News = Callable[[dict[str, Any]], None]  # what a run last said of itself, some times a second
STALL_S = 120.0  # without news of a trial, unless told otherwise
_READY_S = 300.0  # importing torch and DeepSpeed, and the first build of an op
_KILL_S = 30.0  # what a host gets to say that the ranks which were killed are gone
_PEER_GRACE_S = 5.0  # what the other hosts get after one host's ranks failed
# what a user sets for the libraries of the ranks; ssh, sudo and srun hand on no environment
_HANDED_ON = ("NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "CUDA_VISIBLE_DEVICES")


class Host(Spec):
    """One host: where it is reached, by which interface, and with how many ranks.

    ``address`` is where the other hosts reach it. ``prefix`` is put before every command
    (``[ssh, node1]``; ``[ip, netns, exec, a]``; empty: this machine). ``rank_cgroups`` are
    control-group folders that rank ``{local_rank}`` enters before it trains. ``devices``: the GPUs that its
    ranks may see, as ``CUDA_VISIBLE_DEVICES`` has them.
    """

    address: str = "127.0.0.1"
    interface: str | None = None
    prefix: tuple[str, ...] = ()
    ranks: PositiveInt = 1
    python: str = sys.executable
    rank_cgroups: tuple[str, ...] = ()
    devices: str | None = None


class _Agent:
    """The launcher's end of one host's agent: commands go in, events come out through a thread."""

    def __init__(self, host: Host, warm: bool, environment: dict[str, str], log: Path) -> None:
        self.host = host
        self.ended: dict[str, dict[str, Any]] = {}
        self._events: Queue[dict[str, Any] | None] = Queue()
        command = [*host.prefix, host.python, "-m", "pretune.collector.agent", *(["--warm"] * warm)]
        if host.prefix:  # ssh, sudo and srun hand on no environment
            settings = [f"{name}={value}" for name, value in environment.items()]
            command[len(host.prefix) : len(host.prefix)] = ["env", *settings]
        self._log = log.open("ab")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is the session's to handle
            )
        except OSError as error:
            self._log.close()
            raise LaunchError(f"host {host.address}: cannot run {command[0]}: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a login banner is no event
                event = json.loads(line)
                if isinstance(event, dict):
                    self._events.put(event)
        self._events.put(None)

    def say(self, **command: Any) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def wait_for(self, key: str, timeout_s: float) -> Any:
        """The value of the next event that has ``key``; raises :class:`LaunchError` where none comes."""
        limit = time.monotonic() + timeout_s
        while True:
            if (event := self._next(limit - time.monotonic())) is None:
                raise LaunchError(f"host {self.host.address}: its agent said nothing for {timeout_s:.0f} s")
            if key in event:
                return event[key]
            self._note(event)

    def drain(self) -> None:
        """Take in all events that have arrived."""
        while (event := self._next(0)) is not None:
            self._note(event)

    def has_ended(self, name: str) -> bool:
        """Whether the run of that name is over here; an agent that is gone took its ranks with it."""
        try:
            self.drain()
        except LaunchError:
            return True
        return name in self.ended

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            event = self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except Empty:
            return None
        if event is None:
            self._events.put(None)  # for whoever asks again
            raise self._gone()
        if "error" in event:
            raise LaunchError(f"host {self.host.address}: {event['error']}")
        return event

    def _note(self, event: dict[str, Any]) -> None:
        if "ended" in event:
            self.ended[event["ended"]] = event

    def _gone(self) -> LaunchError:
        code = self._process.wait()
        return LaunchError(
            f"host {self.host.address}: its agent ended with code {code}; see {self._log.name}"
        )

    def close(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # the agent kills what it runs, and exits
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout
        self._process.stdout.close()
        self._log.close()


class HostsLauncher(Launcher):
    """Runs one trial at a time over all ``hosts``; ``folder`` is seen by all of them.

    ``warm``: ranks are forked from a process that has torch and DeepSpeed imported.
    ``stall_s``: a trial that reports no progress for so long is ended as a timeout.
    """

    def __init__(
        self,
        hosts: list[Host],
        folder: str | Path,
        *,
        backend: str = "gloo",
        warm: bool = False,
        stall_s: float = STALL_S,
    ) -> None:
        if len({host.ranks for host in hosts}) != 1:
            counts = ", ".join(f"{host.address}: {host.ranks}" for host in hosts)
            raise InputError(f"hosts: every host needs the same number of ranks, got {counts}")
        if len(hosts) > 1 and any("address" not in host.model_fields_set for host in hosts):
            raise InputError("hosts: several hosts need an address each, at which the others reach them")
        if warm and backend != "gloo":
            raise InputError(f"launcher: warm workers are for gloo on the CPU; set warm: false for {backend}")
        self.hosts, self.folder = hosts, Path(folder)
        self.backend, self.warm, self.stall_s = backend, warm, stall_s
        self._agents: list[_Agent] = []
        self._running: dict[str, _Running] = {}

    # -- the interface ------------------------------------------------------------
    def submit(self, spec: TrialSpec) -> Handle:
        folder = self.folder / spec.trial_id
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("rank-*", "node-*", "ended", "result", "progress", "stop"):
            for old in folder.glob(f"{kind}.json"):
                old.unlink()
        if not (folder / "spec.json").exists():
            write_json(folder / "spec.json", spec.model_dump(mode="json"))
        (folder / "spec.json").touch()  # when this run began, should recover have to know
        self._start(spec.trial_id, folder, "pretune.collector.trial_program", spec.knobs.environment())
        return Handle(spec, folder)

    def poll(self, handle: Handle) -> Trial | None:
        running = self._running[handle.spec.trial_id]
        ending = self._ending(running, handle.spec.measure.timeout_s)
        if ending is None:
            return None
        del self._running[handle.spec.trial_id]  # it ended, also when that cannot be noted
        if os.EX_IOERR in ending.returncodes.values():
            raise LaunchError(f"{handle.folder}: its ranks could not write there; make room, start again")
        ending.save(handle.folder)
        return judge(handle.spec, handle.folder, ending)

    def kill(self, handle: Handle) -> None:
        if running := self._running.pop(handle.spec.trial_id, None):
            self._kill(running)
            self._wait(running)

    def recover(self, spec: TrialSpec) -> Trial | None:
        folder = self.folder / spec.trial_id
        ending, result = Ending.load(folder), read_json(folder / "result.json")
        if ending is None and result is not None:
            # measured to the end; only the launcher's own note is missing
            began = (folder / "spec.json").stat().st_mtime
            wall_s = max((folder / "result.json").stat().st_mtime - began, 0.0)
            ending = Ending(began, wall_s, warm=self._forks(spec.knobs.environment()))
        return None if ending is None else judge(spec, folder, ending)

    def close(self) -> None:
        for running in self._running.values():
            self._kill(running)
        self._running.clear()
        for agent in self._agents:
            agent.close()
        self._agents.clear()

    # -- running something on every rank ------------------------------------------
    def run(self, name: str, module: str, timeout_s: float = 300.0, news: News = lambda _: None) -> Path:
        """Run ``module.run(folder)`` on every rank and wait, passing on its progress; returns the folder.

        Raises :class:`LaunchError` when a rank fails or the time is over.
        """
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        running = self._start(name, folder, module, {})
        while (ending := self._ending(running, timeout_s)) is None:
            news(running.said)
            time.sleep(0.05)
        del self._running[name]
        why = ending.killed_because or (any(ending.returncodes.values()) and ending.returncodes)
        if why:
            raise LaunchError(f"{module} failed ({why}); see {folder}")
        return folder

    def _start(self, name: str, folder: Path, module: str, extra: dict[str, str]) -> _Running:
        self._connect()
        self._agents[0].say(port=True)
        port = self._agents[0].wait_for("port", 10.0)
        ranks = self.hosts[0].ranks
        meeting = {
            "MASTER_ADDR": self.hosts[0].address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks * len(self.hosts)),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_WORLD_SIZE": str(len(self.hosts)),
        }
        warm = self._forks(extra)
        running = _Running(name, folder.resolve(), time.time(), time.monotonic(), warm)
        for index, agent in enumerate(self._agents):
            own = self._environment(agent.host)
            mine = {**_handed_on(), **own, **extra, **meeting, "GROUP_RANK": str(index)}
            agent.say(
                run=name, module=module, folder=str(running.folder), ranks=ranks, env=mine, cold=not warm
            )
        self._running[name] = running
        return running

    def _forks(self, variables: dict[str, str]) -> bool:
        """Libraries read some variables when they are imported: a warm worker has done that."""
        return self.warm and not variables

    def _connect(self) -> None:
        if self._agents:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for index, host in enumerate(self.hosts):
                log = self.folder / f"agent-{index}.log"
                self._agents.append(_Agent(host, self.warm, self._environment(host), log))
            for agent in self._agents:
                agent.wait_for("ready", _READY_S)
        except LaunchError:
            self.close()
            raise

    def _environment(self, host: Host) -> dict[str, str]:
        """What must stand in the environment before any library is imported on the host."""
        environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # as torchrun sets it
        if self.backend == "gloo":
            environment["DS_ACCELERATOR"] = "cpu"
        if host.interface:
            environment["GLOO_SOCKET_IFNAME"] = environment["NCCL_SOCKET_IFNAME"] = host.interface
        if host.rank_cgroups:
            environment[CGROUPS] = ":".join(host.rank_cgroups)
        if host.devices:
            environment["CUDA_VISIBLE_DEVICES"] = host.devices
        return environment

    def _ending(self, running: _Running, timeout_s: float) -> Ending | None:
        """The ending when every host reported; kills what stalls, is over time, or lost a peer."""
        for agent in self._agents:
            agent.drain()
        reports = [agent.ended.get(running.name) for agent in self._agents]
        if all(reports):
            return self._merge(running, reports)
        elapsed = time.monotonic() - running.began_monotonic
        if running.killed_at is None:
            if reason := running.overdue(elapsed, timeout_s, self.stall_s):
                running.killed_because = reason
                self._kill(running)
            elif any(report and any(report["returncodes"].values()) for report in reports):
                running.lost_peer_at = running.lost_peer_at or time.monotonic()
                if time.monotonic() - running.lost_peer_at > _PEER_GRACE_S:
                    self._kill(running)
        elif time.monotonic() - running.killed_at > _KILL_S:
            silent = ", ".join(a.host.address for a, r in zip(self._agents, reports, strict=True) if not r)
            raise LaunchError(f"hosts {silent}: {running.name} could not be ended in {_KILL_S:g} s")
        return None

    def _merge(self, running: _Running, reports: list[Any]) -> Ending:
        codes = {int(rank): code for report in reports for rank, code in report["returncodes"].items()}
        for agent in self._agents:
            del agent.ended[running.name]
        return Ending(
            began=running.began,
            wall_s=time.monotonic() - running.began_monotonic,
            returncodes=codes,
            oom_kills=max(report["oom_kills"] for report in reports),
            killed_because=running.killed_because,
            killed_ranks=[rank for report in reports for rank in report["killed"]],
            warm=running.warm,
        )

    def _kill(self, running: _Running) -> None:
        running.killed_at = time.monotonic()
        for agent in self._agents:
            with contextlib.suppress(LaunchError):
                agent.say(kill=running.name)

    def _wait(self, running: _Running) -> None:
        limit = time.monotonic() + 20
        while time.monotonic() < limit and not all(agent.has_ended(running.name) for agent in self._agents):
            time.sleep(0.02)
        for agent in self._agents:
            agent.ended.pop(running.name, None)


def _handed_on() -> dict[str, str]:
    """The variables of this process that ranks on every host are to have."""
    given = {name: value for name, value in os.environ.items() if name.startswith(_HANDED_ON)}
    tokens = os.environ.get(TOKENS)
    return given | ({TOKENS: str(Path(tokens).resolve())} if tokens else {})


class _Running:
    """A trial under way, as the launcher sees it."""

    def __init__(self, name: str, folder: Path, began: float, began_monotonic: float, warm: bool) -> None:
        self.name, self.folder, self.warm = name, folder, warm
        self.said: dict[str, Any] = {}
        self.heard_s = 0.0  # when it last said something new, by this host's clock
        self.began, self.began_monotonic = began, began_monotonic
        self.killed_at: float | None = None
        self.killed_because: str | None = None
        self.lost_peer_at: float | None = None

    def overdue(self, elapsed_s: float, timeout_s: float, stall_s: float) -> str | None:
        """Why the trial is to be killed now; None when it may go on."""
        said = read_json(self.folder / "progress.json") or {}
        if said != self.said:
            self.said, self.heard_s = said, elapsed_s
        where = f"phase {said.get('phase', 'start')}, window {said.get('windows', 0)}"
        if elapsed_s > timeout_s:
            return f"did not end within its limit of {timeout_s:g} s ({where})"
        quiet = elapsed_s - self.heard_s
        if quiet > stall_s:
            return f"no progress for {quiet:.0f} s ({where})"
        return None


class LocalLauncher(HostsLauncher):
    """Trials on this machine: ``devices`` ranks over loopback or the GPUs' own links."""

    def __init__(
        self,
        devices: int,
        folder: str | Path,
        *,
        backend: str = "gloo",
        warm: bool = False,
        stall_s: float = STALL_S,
    ) -> None:
        hosts = [Host(ranks=devices, interface="lo" if backend == "gloo" else None)]
        super().__init__(hosts, folder, backend=backend, warm=warm, stall_s=stall_s)
