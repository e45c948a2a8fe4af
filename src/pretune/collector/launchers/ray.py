"""Trials on the nodes of a Ray cluster, also one that KubeRay runs on Kubernetes.

A placement group reserves one bundle on each of as many nodes for the session; an actor in each bundle
starts the agent that hosts have, and passes lines on between it and the launcher. Ray places, reserves
and says what died; which ranks run, and when they end, the agents see to as everywhere else.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from pretune.collector.launchers.agents import AgentGone, Host, Wire
from pretune.collector.launchers.base import Reach
from pretune.collector.launchers.ranks import STALL_S, RanksLauncher
from pretune.datasets.spec import Spec
from pretune.errors import InputError, LaunchError

_SETTLE_S = 15.0  # what Ray gets to find out that a node is gone
_LEAVE_S = 20.0  # what an agent gets to end its ranks and exit


class RaySettings(Spec):
    """What a job's ``launcher: ray:`` says.

    ``nodes`` with ``ranks`` each, and ``interface`` as for hosts. Each node reserves ``cpus`` (one a rank)
    and ``gpus`` (one a rank with NCCL, else none). ``address`` is the cluster's, ``auto`` where pretune
    runs on one of its nodes. ``wait_s``: how long the cluster, or its autoscaler, gets to find the nodes.
    """

    nodes: PositiveInt
    ranks: PositiveInt
    interface: str | None = None
    cpus: NonNegativeFloat | None = None
    gpus: NonNegativeInt | None = None
    address: str = "auto"
    wait_s: PositiveFloat = 600.0

    @field_validator("address")
    @classmethod
    def _of_the_cluster(cls, value: str) -> str:
        if value.startswith("ray://"):
            raise ValueError(
                "Ray's client streams nothing; use `ray job submit -- pretune tune ...` with auto"
            )
        return value

    def bundle(self, backend: str) -> dict[str, float]:
        """What each node reserves."""
        gpus = self.gpus if self.gpus is not None else self.ranks * (backend == "nccl")
        asked = {"CPU": self.ranks if self.cpus is None else self.cpus, "GPU": gpus}
        return {name: float(amount) for name, amount in asked.items() if amount}


class RayNode(Host):
    """A host by the id that Ray gives it."""

    node: str

    @property
    def label(self) -> str:
        return f"{self.address} (Ray node {self.node[:8]})"


class RayLauncher(RanksLauncher):
    """Runs one trial at a time over ``settings.nodes`` nodes of a Ray cluster.

    An actor or a node that dies interrupts the trial; the next one reserves nodes anew. Raises
    :class:`InputError` where Ray is not installed.
    """

    def __init__(
        self,
        settings: RaySettings,
        folder: str | Path,
        *,
        backend: str = "gloo",
        warm: bool = False,
        stall_s: float = STALL_S,
    ) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise InputError("launcher: ray: is not installed; pip install 'pretune[ray]'") from None
        self._ray: Any = ray
        self.settings = settings
        self._group: Any = None
        self._actors: dict[str, Any] = {}
        reach = Reach(settings.nodes, settings.ranks, backend, (settings.interface,) * settings.nodes)
        super().__init__(reach, folder, warm=warm, stall_s=stall_s)

    def close(self) -> None:
        super().close()
        self._ray.shutdown()

    def _hosts(self) -> list[Host]:
        self._join()
        self._reserve()
        actors = [self._actor(index) for index in range(self.settings.nodes)]
        try:
            places = self._ray.get([actor.place.remote() for actor in actors], timeout=self.settings.wait_s)
        except self._ray.exceptions.RayError as error:
            raise LaunchError(f"ray: its nodes start no actor: {_first_line(error)}") from None
        self._actors = {node: actor for (node, _), actor in zip(places, actors, strict=True)}
        ranks, interface = self.settings.ranks, self.settings.interface
        return [RayNode(node=node, address=ip, ranks=ranks, interface=interface) for node, ip in places]

    def _join(self) -> None:
        if self._ray.is_initialized():
            return
        try:
            if self.settings.address != "auto":  # Ray itself would try for minutes
                host, _, port = self.settings.address.rpartition(":")
                socket.create_connection((host, int(port)), timeout=10.0).close()
            self._ray.init(address=self.settings.address, log_to_driver=False, logging_level="error")
        except (OSError, ValueError) as error:
            raise LaunchError(
                f"ray: address: {self.settings.address}: no cluster answers ({_first_line(error)}); "
                "run pretune on a node of the cluster, or by `ray job submit`"
            ) from None

    def _reserve(self) -> None:
        from ray.util.placement_group import placement_group

        bundle = self.settings.bundle(self.reach.backend)
        self._group = placement_group(
            [bundle] * self.settings.nodes, strategy="STRICT_SPREAD", name="pretune"
        )
        try:
            self._ray.get(self._group.ready(), timeout=self.settings.wait_s)
        except self._ray.exceptions.GetTimeoutError:
            raise LaunchError(
                f"ray: no {self.settings.nodes} nodes with {bundle} each were free within "
                f"{self.settings.wait_s:g} s; the cluster has {self._ray.cluster_resources()}"
            ) from None

    def _actor(self, index: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self.settings.bundle(self.reach.backend)
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        declared = self._ray.remote(concurrency_groups={"in": 1, "out": 1})(NodeAgent)
        cpus, gpus = bundle.get("CPU", 0), bundle.get("GPU", 0)
        return declared.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=place).remote()

    def _wire(self, host: Host, environment: dict[str, str], log: Path) -> Wire:
        assert isinstance(host, RayNode)
        return RayWire(self._ray, self._actors[host.node], self.warm, environment, log.resolve())

    def _disconnect(self) -> None:
        super()._disconnect()
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)  # and ends what is left of its actors
            self._group = None

    def _scheduler_job(self) -> str | None:
        return f"ray:{self._ray.get_runtime_context().get_job_id()}"

    def _why_gone(self, gone: AgentGone) -> str:
        assert isinstance(gone.host, RayNode)
        limit = time.monotonic() + _SETTLE_S
        while (alive := self._is_alive(gone.host.node)) and time.monotonic() < limit:
            time.sleep(0.5)
        return f"{'host lost' if alive else 'node failure'}: {gone}"

    def _is_alive(self, node: str) -> bool:
        return any(each["Alive"] for each in self._ray.nodes() if each["NodeID"] == node)


class NodeAgent:
    """In a Ray actor on its node: the agent's process, and the lines in and out of it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def place(self) -> tuple[str, str]:
        """The node's id and its address."""
        import ray

        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def run(self, warm: bool, environment: dict[str, str], log: Path) -> Iterator[bytes | int]:
        """Start the agent; every line that it says, then its exit code."""
        command = [sys.executable, "-m", "pretune.collector.agent", *(["--warm"] * warm)]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **environment},
            )
        assert self._process.stdout
        for line in self._process.stdout:  # noqa: UP028  Ray sends into what it iterates, files take nothing
            yield line
        yield self._process.wait()

    def send(self, line: bytes | None) -> None:
        """Pass on a line; None ends them, and the agent with them."""
        assert self._process
        assert self._process.stdin
        if line is None:
            self._process.stdin.close()
        else:
            self._process.stdin.write(line)
            self._process.stdin.flush()


class RayWire(Wire):
    """The lines of an agent that a :class:`NodeAgent` runs; the actor's death is the agent's."""

    def __init__(self, ray: Any, actor: Any, warm: bool, environment: dict[str, str], log: Path) -> None:
        self._ray, self._actor, self._log = ray, actor, log
        self._said = actor.run.options(concurrency_group="out").remote(warm, environment, log)
        self._how = "said nothing"

    def send(self, line: bytes) -> None:
        self._actor.send.options(concurrency_group="in").remote(line)

    def lines(self) -> Iterator[bytes]:
        try:
            for reference in self._said:
                said = self._ray.get(reference)
                if isinstance(said, bytes):
                    yield said
                else:
                    self._how = f"ended with code {said}; see {self._log}"
        except self._ray.exceptions.RayTaskError as error:  # ends with what was raised in the actor
            self._how = f"could not be run: {str(error).strip().splitlines()[-1]}"
        except self._ray.exceptions.RayError as error:
            self._how = f"is gone: {_first_line(error)}"

    def how_gone(self) -> str:
        return self._how

    def hang_up(self) -> None:
        self._actor.send.options(concurrency_group="in").remote(None)

    def close(self) -> None:
        ended = self._said.completed()
        self._ray.wait([ended], timeout=_LEAVE_S)
        self._ray.kill(self._actor)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
