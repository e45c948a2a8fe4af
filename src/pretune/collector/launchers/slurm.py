"""Trials on the nodes of one Slurm allocation, the one that pretune runs in or one that it asks for.

One job step a node holds that node's agent for the whole session (``srun --overlap``), and each trial
is a command to the agents. A step for each trial would cost every trial the start of its steps and the
import of torch, leave no warm workers, and give another way to end a trial than on other hosts. So all
trials run on the same nodes, which are queued for once; a lost node is known by its own step's end.

An allocation of pretune's own is held by a process that waits for the end of its standard input: it is
given back when the session ends, however it ends.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from os import environ
from pathlib import Path
from typing import IO, Literal

from pydantic import PositiveInt

from pretune.collector.launchers.agents import AgentGone, Host
from pretune.collector.launchers.base import Handle, Reach
from pretune.collector.launchers.ranks import STALL_S, RanksLauncher
from pretune.datasets.spec import Spec
from pretune.datasets.trial import Trial
from pretune.errors import LaunchError

_SETTLE_S = 15.0  # what Slurm gets to find out why an agent is gone
_RELEASE_S = 30.0
_ENDED = {  # a job's state, and what it says of a trial
    "NODE_FAIL": "node failure",
    "BOOT_FAIL": "node failure",
    "PREEMPTED": "preempted",
    "TIMEOUT": "the allocation's time is over",
    "DEADLINE": "the allocation's time is over",
    "CANCELLED": "the allocation was cancelled",
}
_DOWN = re.compile(r"DOWN|FAIL|NOT_RESPONDING|\*")  # in a node's state; the star: it does not answer


class SlurmSettings(Spec):
    """What a job's ``launcher: slurm:`` says.

    ``nodes`` with ``ranks`` each. ``interface``, ``python``: as for hosts. ``container`` is put before
    every command on the nodes (``[apptainer, exec, --nv, image.sif]``); ``srun`` and ``salloc`` are
    options added to those commands (``[--container-image=...]``, ``[--exclusive, --constraint=h100]``).
    Inside an allocation its first ``nodes`` nodes that are up are used, and what follows is not read:
    ``partition``, ``account``, ``gpus_per_node``, ``minutes`` of the allocation that is asked for, and
    ``hold``: whether it is kept for the session, or asked for anew by each trial.
    """

    nodes: PositiveInt
    ranks: PositiveInt
    interface: str | None = None
    python: str = Host.model_fields["python"].default
    container: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    salloc: tuple[str, ...] = ()
    partition: str | None = None
    account: str | None = None
    gpus_per_node: PositiveInt | None = None
    minutes: PositiveInt | None = None
    hold: Literal["session", "trial"] = "session"

    def asking(self) -> list[str]:
        """The command line that asks for an allocation, up to what is to run in it."""
        stated = {
            "partition": self.partition,
            "account": self.account,
            "gpus-per-node": self.gpus_per_node,
            "time": self.minutes,
            "nodes": self.nodes,
            "ntasks-per-node": self.ranks,
        }
        options = [f"--{name}={value}" for name, value in stated.items() if value is not None]
        return ["salloc", "--job-name=pretune", *options, *self.salloc]

    def step(self, job_id: str, node: str) -> tuple[str, ...]:
        """What is put before a command to run it once on ``node``, beside the other steps there."""
        gpus = (f"--gpus-per-node={self.gpus_per_node}",) if self.gpus_per_node else ()
        whole = ("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--export=ALL")
        where = ("srun", f"--jobid={job_id}", f"--nodelist={node}")
        return (*where, *whole, *gpus, *self.srun, *self.container)


class Node(Host):
    """A host by the name that Slurm gives it: several nodes may have one address."""

    node: str

    @property
    def label(self) -> str:
        return self.node


class SlurmLauncher(RanksLauncher):
    """Runs one trial at a time over ``settings.nodes`` nodes of an allocation.

    A node that fails and a job that is preempted interrupt the trial. The next trial asks for a new
    allocation; inside one that Slurm kept (``--no-kill``) it takes the nodes that are left, spare ones
    included.
    """

    def __init__(
        self,
        settings: SlurmSettings,
        folder: str | Path,
        *,
        backend: str = "gloo",
        warm: bool = False,
        stall_s: float = STALL_S,
    ) -> None:
        self.settings = settings
        self._job_id = environ.get("SLURM_JOB_ID")
        self._held: _Held | None = None
        interfaces = (settings.interface,) * settings.nodes
        reach = Reach(settings.nodes, settings.ranks, backend, interfaces)
        super().__init__(reach, folder, warm=warm, stall_s=stall_s)

    def poll(self, handle: Handle) -> Trial | None:
        trial = super().poll(handle)
        if trial is not None and self.settings.hold == "trial":
            self._disconnect()
        return trial

    def _hosts(self) -> list[Host]:
        if "SLURM_JOB_ID" not in environ:
            self._held = _Held(self.settings.asking(), self.folder / "salloc.log")
            self._job_id = self._held.job_id
        job = _shown("job", str(self._job_id))[0]
        nodes = [node for node in _shown("node", job["NodeList"]) if not _DOWN.search(node["State"])]
        if len(nodes) < self.settings.nodes:
            raise LaunchError(
                f"slurm job {self._job_id} ({job['JobState']}): nodes: {len(nodes)} of {job['NodeList']} "
                f"are up, {self.settings.nodes} are needed; allocate more of them"
            )
        return [self._host(node) for node in nodes[: self.settings.nodes]]

    def _host(self, node: Mapping[str, str]) -> Host:
        return Node(
            node=node["NodeName"],
            address=node["NodeAddr"],
            interface=self.settings.interface,
            prefix=self.settings.step(str(self._job_id), node["NodeName"]),
            ranks=self.settings.ranks,
            python=self.settings.python,
        )

    def _disconnect(self) -> None:
        super()._disconnect()
        if self._held is not None:
            self._held.release()
            self._held = None

    def _scheduler_job(self) -> str | None:
        return f"slurm:{self._job_id}"

    def _why_gone(self, gone: AgentGone) -> str:
        """An agent's connection breaks before Slurm has noticed why: it is asked for a while."""
        limit = time.monotonic() + _SETTLE_S
        while (why := self._told(gone.host.label)) is None and time.monotonic() < limit:
            time.sleep(0.5)
        return f"{why or 'host lost'}: {gone} (slurm job {self._job_id})"

    def _told(self, node: str) -> str | None:
        """Why the job or its node is no longer, as Slurm has it; None while it knows of nothing."""
        try:
            state = _shown("job", str(self._job_id))[0]["JobState"]
            down = _DOWN.search(_shown("node", node)[0]["State"])
        except LaunchError:  # it forgets jobs that ended some minutes ago
            return None
        return _ENDED.get(state) or ("node failure" if down else None)


class _Held:
    """An allocation, from when it is granted (which may take long) until ``release``.

    Raises :class:`LaunchError` with what Slurm says when it is refused.
    """

    def __init__(self, asking: list[str], log: Path) -> None:
        command = [*asking, "sh", "-c", 'echo "$SLURM_JOB_ID"; exec cat >/dev/null']
        with log.open("wb") as file:
            self._process = _started(command, file, stdin=subprocess.PIPE)
        try:
            assert self._process.stdout
            self.job_id = self._process.stdout.readline().decode().strip()
        except BaseException:  # Ctrl-C in the queue
            self._process.terminate()
            self._close()
            raise
        if not self.job_id:
            self._close()
            said = " ".join(log.read_text(errors="replace").split())
            raise LaunchError(f"slurm: no allocation ({said[-300:]}); asked with: {' '.join(asking)}")

    def release(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=_RELEASE_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def _started(
    command: list[str], stderr: int | IO[bytes], stdin: int | None = None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
    except FileNotFoundError:
        raise LaunchError(
            f"slurm: there is no {command[0]} here; run pretune where Slurm's commands are"
        ) from None


def _shown(kind: str, name: str) -> list[dict[str, str]]:
    """``scontrol show KIND NAME``: what is known of each, by field. Raises :class:`LaunchError`."""
    process = _started(["scontrol", "--oneliner", "show", kind, name], subprocess.PIPE)
    out, error = process.communicate()
    found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in out.decode().splitlines() if "=" in line]
    if process.returncode or not found:
        raise LaunchError(f"slurm: {kind} {name}: {error.decode().strip() or 'is not known'}")
    return found
