"""What all launchers of ranks have in common: one agent per host, one trial at a time over all of them.

How the hosts are found and reached is all that differs: see ``hosts.py``, ``slurm.py`` and ``ray.py``.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretune.collector.evidence import Ending, judge, read_json, write_json
from pretune.collector.launchers.agents import AgentGone, AgentLink, Host, ProcessWire, Wire
from pretune.collector.launchers.base import Handle, Launcher, Reach
from pretune.collector.launchers.program import ONCE_A_HOST, program
from pretune.collector.launchers.running import Running
from pretune.collector.process import CGROUPS, TOKENS
from pretune.datasets.trial import Trial, TrialSpec
from pretune.errors import InputError, LaunchError

News = Callable[[dict[str, Any]], None]  # what a run last said of itself, some times a second
STALL_S = 120.0  # without news of a trial, unless told otherwise
_READY_S = 300.0  # importing torch and DeepSpeed, and the first build of an op
_KILL_S = 30.0  # what a host gets to say that the ranks which were killed are gone
_PEER_GRACE_S = 5.0  # what the other hosts get after one host's ranks failed
# what a user sets for the libraries of the ranks; ssh and sudo hand on no environment
_HANDED_ON = ("NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "CUDA_VISIBLE_DEVICES")


class RanksLauncher(Launcher):
    """Runs one trial at a time over all its hosts; ``folder`` is seen by all of them.

    ``warm``: ranks are forked from a process that has torch and DeepSpeed imported.
    ``stall_s``: a trial that reports no progress for so long is ended as a timeout.

    A host that is lost while a trial runs interrupts it; the next trial connects anew.
    """

    reach: Reach

    def __init__(
        self, reach: Reach, folder: str | Path, *, warm: bool = False, stall_s: float = STALL_S
    ) -> None:
        if warm and reach.backend != "gloo":
            raise InputError(
                f"launcher: warm workers are for gloo on the CPU; set warm: false for {reach.backend}"
            )
        self.reach, self.folder = reach, Path(folder)
        self.warm, self.stall_s = warm, stall_s
        self._agents: list[AgentLink] = []
        self._running: dict[str, Running] = {}

    # -- what differs ---------------------------------------------------------------
    @abstractmethod
    def _hosts(self) -> list[Host]:
        """The hosts, in the order of their ranks; called before each connection.

        Raises :class:`LaunchError` when there are none to be had.
        """

    def _wire(self, host: Host, environment: dict[str, str], log: Path) -> Wire:
        """The way to a new agent on ``host``, which has ``environment`` from its start."""
        return ProcessWire(host, self.warm, environment, log)

    def _why_gone(self, gone: AgentGone) -> str:
        """What is known of a host that was lost, in one line."""
        return str(gone)

    def _scheduler_job(self) -> str | None:
        """The scheduler's own name of what the trials run in."""
        return None

    # -- the interface ------------------------------------------------------------
    def submit(self, spec: TrialSpec) -> Handle:
        folder = self.folder / spec.trial_id
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("rank-*", "node-*", "ended", "result", "progress", "recorded", "enough", "stop"):
            for old in folder.glob(f"{kind}.json"):
                old.unlink()
        if not (folder / "spec.json").exists():
            write_json(folder / "spec.json", spec.model_dump(mode="json"))
        (folder / "spec.json").touch()  # when this run began, should recover have to know
        self._start(spec.trial_id, folder, *program(spec, folder))
        return Handle(spec, folder)

    def poll(self, handle: Handle) -> Trial | None:
        running = self._running[handle.spec.trial_id]
        try:
            ending = self._ending(running, handle.spec.measure.timeout_s)
        except AgentGone as gone:
            ending = self._interrupted(running, gone)
        if ending is None:
            return None
        del self._running[handle.spec.trial_id]  # it ended, also when that cannot be noted
        if os.EX_IOERR in ending.returncodes.values():
            raise LaunchError(f"{handle.folder}: its ranks could not write there; make room, start again")
        ending.save(handle.folder)
        return judge(handle.spec, handle.folder, ending)

    def kill(self, handle: Handle) -> None:
        running = self._running.pop(handle.spec.trial_id, None)
        if running is not None:
            self._kill(running)
            self._wait(running)

    def recover(self, spec: TrialSpec) -> Trial | None:
        folder = self.folder / spec.trial_id
        ending = Ending.load(folder)
        result = read_json(folder / "result.json")
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
        self._disconnect()

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

    @property
    def addresses(self) -> list[str]:
        """Of the hosts that it is connected to, in the order of their ranks."""
        return [agent.host.address for agent in self._agents]

    def _start(self, name: str, folder: Path, module: str, extra: dict[str, str]) -> Running:
        self._connect()
        self._agents[0].say(port=True)
        port = self._agents[0].wait_for("port", 10.0)
        nodes, ranks = self.reach.nodes, self.reach.ranks
        meeting = {
            "MASTER_ADDR": self._agents[0].host.address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks * nodes),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_WORLD_SIZE": str(nodes),
        }
        once = module in ONCE_A_HOST
        warm = self._forks(extra) and not once
        running = Running(name, folder.resolve(), warm)
        for index, agent in enumerate(self._agents):
            own = self._environment(agent.host)
            mine = {**_handed_on(), **own, **extra, **meeting, "GROUP_RANK": str(index)}
            how = {"ranks": 1 if once else ranks, "cold": not (warm or once)}
            agent.say(run=name, module=module, folder=str(running.folder), env=mine, **how)
        self._running[name] = running
        return running

    def _forks(self, variables: dict[str, str]) -> bool:
        """Libraries read some variables when they are imported: a warm worker has done that."""
        return self.warm and not variables

    def _connect(self) -> None:
        if any(agent.is_gone() for agent in self._agents):
            self._disconnect()
        if self._agents:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for index, host in enumerate(self._hosts()):
                wire = self._wire(host, self._environment(host), self.folder / f"agent-{index}.log")
                self._agents.append(AgentLink(host, wire))
            for agent in self._agents:
                agent.wait_for("ready", _READY_S)
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        for agent in self._agents:
            agent.hang_up()
        for agent in self._agents:
            agent.close()
        self._agents.clear()

    def _environment(self, host: Host) -> dict[str, str]:
        """What must stand in the environment before any library is imported on the host."""
        environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # as torchrun sets it
        if self.reach.backend == "gloo":
            environment["DS_ACCELERATOR"] = "cpu"
        if host.interface:
            environment["GLOO_SOCKET_IFNAME"] = environment["NCCL_SOCKET_IFNAME"] = host.interface
        if host.rank_cgroups:
            environment[CGROUPS] = ":".join(host.rank_cgroups)
        if host.devices:
            environment["CUDA_VISIBLE_DEVICES"] = host.devices
        return environment

    def _ending(self, running: Running, timeout_s: float) -> Ending | None:
        """The ending when every host reported; kills what stalls, is over time, or lost a peer."""
        for agent in self._agents:
            agent.drain()
        reports = [agent.ended.get(running.name) for agent in self._agents]
        if all(reports):
            return self._merge(running, reports)
        if running.killed_at is None:
            reason = running.overdue(timeout_s, self.stall_s)
            if reason:
                running.killed_because = reason
                self._kill(running)
            elif any(report and any(report["returncodes"].values()) for report in reports):
                running.lost_peer_at = running.lost_peer_at or time.monotonic()
                if time.monotonic() - running.lost_peer_at > _PEER_GRACE_S:
                    self._kill(running)
        elif time.monotonic() - running.killed_at > _KILL_S:
            silent = next(a.host for a, r in zip(self._agents, reports, strict=True) if not r)
            raise AgentGone(silent, f"could not end {running.name} in {_KILL_S:g} s")
        return None

    def _merge(self, running: Running, reports: list[Any]) -> Ending:
        codes = {int(rank): code for report in reports for rank, code in report["returncodes"].items()}
        for agent in self._agents:
            del agent.ended[running.name]
        return Ending(
            began=running.began,
            wall_s=running.elapsed_s,
            returncodes=codes,
            oom_kills=max(report["oom_kills"] for report in reports),
            killed_because=running.killed_because,
            killed_ranks=[rank for report in reports for rank in report["killed"]],
            warm=running.warm,
            scheduler_job=self._scheduler_job(),
        )

    def _interrupted(self, running: Running, gone: AgentGone) -> Ending:
        """The ending of a trial that lost a host. The other agents leave, and end their ranks."""
        why, scheduler_job = self._why_gone(gone), self._scheduler_job()
        self._disconnect()
        return Ending(
            began=running.began,
            wall_s=running.elapsed_s,
            warm=running.warm,
            interrupted_because=why,
            scheduler_job=scheduler_job,
        )

    def _kill(self, running: Running) -> None:
        running.killed_at = time.monotonic()
        for agent in self._agents:
            with contextlib.suppress(LaunchError):
                agent.say(kill=running.name)

    def _wait(self, running: Running) -> None:
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
