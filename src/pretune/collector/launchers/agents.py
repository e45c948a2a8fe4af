"""The launcher's end of the agents: a host, the wire to its agent, and what came over it so far."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from pydantic import PositiveInt

from pretune.datasets.spec import Spec
from pretune.errors import LaunchError

_LEAVE_S = 20.0  # what an agent gets to end its ranks and exit


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

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.address


class AgentGone(LaunchError):
    """The agent of ``host`` ended, or cannot be reached any more; ``how`` in words."""

    def __init__(self, host: Host, how: str) -> None:
        self.host, self.how = host, how
        super().__init__(f"host {host.label}: its agent {how}")


class Wire(ABC):
    """A way to an agent: lines go in, and lines come out until it is gone."""

    @abstractmethod
    def send(self, line: bytes) -> None:
        """Pass on one line. Raises :class:`OSError` when the agent is gone."""

    @abstractmethod
    def lines(self) -> Iterator[bytes]:
        """What the agent says, as it says it; ends when the agent is gone. Read by one thread."""

    @abstractmethod
    def how_gone(self) -> str:
        """How the agent ended, in words; asked once ``lines`` ended."""

    @abstractmethod
    def hang_up(self) -> None:
        """Tell the agent to end its ranks and exit; returns at once."""

    @abstractmethod
    def close(self) -> None:
        """Wait until it is gone, and see to it that it goes."""


class ProcessWire(Wire):
    """An agent that a command of this machine starts, here or far away: its standard input and output.

    Raises :class:`LaunchError` when there is no such command.
    """

    def __init__(self, host: Host, warm: bool, environment: dict[str, str], log: Path) -> None:
        command = [*host.prefix, host.python, "-m", "pretune.collector.agent", *(["--warm"] * warm)]
        if host.prefix:  # ssh and sudo hand on no environment
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
            raise LaunchError(f"host {host.label}: cannot run {command[0]}: {error.strerror}") from None

    def send(self, line: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        assert self._process.stdout
        with self._process.stdout as out:
            yield from out

    def how_gone(self) -> str:
        return f"ended with code {self._process.wait()}; see {self._log.name}"

    def hang_up(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        try:
            self._process.wait(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class AgentLink:
    """One host's agent: commands go in, events come out through a thread."""

    def __init__(self, host: Host, wire: Wire) -> None:
        self.host = host
        self.ended: dict[str, dict[str, Any]] = {}
        self._wire = wire
        self._events: Queue[dict[str, Any] | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._wire.lines():
            with contextlib.suppress(ValueError):  # a login banner is no event
                event = json.loads(line)
                if isinstance(event, dict):
                    self._events.put(event)
        self._events.put(None)

    def say(self, **command: Any) -> None:
        try:
            self._wire.send(json.dumps(command).encode() + b"\n")
        except OSError:
            raise self._gone() from None

    def wait_for(self, key: str, timeout_s: float) -> Any:
        """The value of the next event that has ``key``; raises :class:`LaunchError` where none comes."""
        limit = time.monotonic() + timeout_s
        while True:
            event = self._next(limit - time.monotonic())
            if event is None:
                raise LaunchError(f"host {self.host.label}: its agent said nothing for {timeout_s:.0f} s")
            if key in event:
                return event[key]
            self._note(event)

    def drain(self) -> None:
        """Take in all events that have arrived. Raises :class:`AgentGone`."""
        while (event := self._next(0)) is not None:
            self._note(event)

    def is_gone(self) -> bool:
        try:
            self.drain()
        except LaunchError:
            return True
        return False

    def has_ended(self, name: str) -> bool:
        """Whether the run of that name is over here; an agent that is gone took its ranks with it."""
        return self.is_gone() or name in self.ended

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            event = self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except Empty:
            return None
        if event is None:
            self._events.put(None)  # for whoever asks again
            raise self._gone()
        if "error" in event:
            raise LaunchError(f"host {self.host.label}: {event['error']}")
        return event

    def _note(self, event: dict[str, Any]) -> None:
        if "ended" in event:
            self.ended[event["ended"]] = event

    def _gone(self) -> AgentGone:
        return AgentGone(self.host, self._wire.how_gone())

    def hang_up(self) -> None:
        """Let the agent end what it runs, and exit; returns at once."""
        self._wire.hang_up()

    def close(self) -> None:
        """Return when the agent is gone."""
        self.hang_up()
        self._wire.close()
        self._reader.join()
