"""Run a command as if nobody stood between: output, signals and exit code pass, and a log keeps the output.

Streams that are terminals stay terminals to the command (pty(7)), with the size of the real one; its input is
the caller's own. It runs in a session of its own, so that a signal reaches it once, from here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import selectors
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from pretune.collector.guard import GRACE_S
from pretune.collector.process import family, kill_after
from pretune.collector.timed_log import TimedLog

if TYPE_CHECKING:
    import psutil

CHUNK = 1 << 16
QUIET_S = 0.5  # what outlives the command may hold its output open: this long a silence is its end
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP)


@dataclass(frozen=True)
class Ended:
    """``code`` as a shell gives it: 128 + n after signal n. ``stopped_by``: a signal that came from outside
    and was passed on, which says nothing of the configuration."""

    code: int
    stopped_by: signal.Signals | None = None

    @property
    def by_hand(self) -> bool:
        return self.stopped_by is signal.SIGINT


class Command:
    """A command that runs, from construction on. Raises :class:`OSError` when it cannot be started."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], folder: str | None = None
    ) -> None:
        self.stopped_by: signal.Signals | None = None
        self._doomed: list[psutil.Process] = []
        self._outputs = _outputs()
        ends = [write for _, write in self._outputs]
        try:
            self.process = subprocess.Popen(
                words, env=environment, cwd=folder, stdout=ends[0], stderr=ends[-1], start_new_session=True
            )
        finally:
            for end in ends:
                os.close(end)

    def follow(self, log: TimedLog, meanwhile: Callable[[], None] = lambda: None) -> Ended:
        """Pass everything on until it ends; what a stopping signal leaves of it is killed after a while.

        ``meanwhile`` is called some times a second.
        """
        with _handling(self._signalled), selectors.DefaultSelector() as open_ends:
            for target, (read, _) in enumerate(self._outputs, start=1):
                open_ends.register(read, selectors.EVENT_READ, target)
            self._pump(open_ends, log, meanwhile)
            code = self.process.wait()
            kill_after(self._doomed, GRACE_S)
        return Ended(code if code >= 0 else 128 - code, self.stopped_by)

    def _pump(self, open_ends: selectors.BaseSelector, log: TimedLog, meanwhile: Callable[[], None]) -> None:
        quiet_since: float | None = None
        while open_ends.get_map():
            ready = open_ends.select(timeout=0.1)
            for key, _ in ready:
                if not _passed(key.fd, key.data, log):
                    open_ends.unregister(key.fd)
                    os.close(key.fd)
            meanwhile()
            if ready or self.process.poll() is None:
                quiet_since = None
            elif time.monotonic() - (quiet_since := quiet_since or time.monotonic()) > QUIET_S:
                return

    def stop(self) -> None:
        """End it as a user would: SIGTERM, then SIGKILL for what is left after a while."""
        self._doomed = family(self.process.pid) or self._doomed
        self._send(signal.SIGTERM)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        sent = signal.Signals(number)
        if sent in STOPPING:
            self.stopped_by = sent
            self._doomed = family(self.process.pid) or self._doomed
        if sent is signal.SIGWINCH:
            for read, _ in self._outputs:
                _resize(read)
        if sent is not signal.SIGTSTP:
            self._send(sent)
            return
        self._send(signal.SIGSTOP)  # in a session of its own nothing else stops it
        os.kill(os.getpid(), signal.SIGSTOP)
        self._send(signal.SIGCONT)

    def _send(self, sent: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, sent)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """``handler`` for the signals that are not ignored here (nohup): the command ignores those itself."""
    before = {number: signal.getsignal(number) for number in PASSED_ON}
    heeded = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in heeded.items():
            signal.signal(number, old)


def _outputs() -> list[tuple[int, int]]:
    """Read and write end for standard output and standard error; one for both where they are one file."""
    return [_ends(1)] if os.path.sameopenfile(1, 2) else [_ends(1), _ends(2)]


def _ends(stream: int) -> tuple[int, int]:
    if not os.isatty(stream):
        return os.pipe()
    read, write = os.openpty()
    settings = termios.tcgetattr(stream)
    settings[1] &= ~termios.OPOST  # the real terminal does what is to be done with line ends
    termios.tcsetattr(write, termios.TCSANOW, settings)
    _resize(read, stream)
    return read, write


def _resize(terminal: int, like: int | None = None) -> None:
    """Give a pty the size of the real terminal; nothing where one of them is none."""
    stream = like if like is not None else next((each for each in (1, 2) if os.isatty(each)), None)
    with contextlib.suppress(OSError):
        if stream is not None:
            size = fcntl.ioctl(stream, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def _passed(source: int, target: int, log: TimedLog) -> bool:
    """Pass on what there is; False when the stream has ended, or nobody reads it any more."""
    try:
        data = os.read(source, CHUNK)
    except OSError:  # how a pty ends
        return False
    left = memoryview(data)
    try:
        while left:
            select.select([], [target], [])  # somebody may have made it one that does not block
            left = left[os.write(target, left) :]
    except OSError:  # as without pretune, the command meets it at its next word
        return False
    log.write(target, data)
    return bool(data)
