"""A command's output in one file, by whole lines, and when each of them came."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from pathlib import Path

from pretune.errors import InputError

LONGEST = 1 << 20  # bytes of a line; what is longer may be mixed with the other stream's


class TimedLog:
    """Both streams of a command in ``path``, which must not be there yet: whole lines, so that neither
    stream's are torn by the other's. Lines end at a line feed or, as progress bars do, at a carriage return.

    A disk that is full ends the log, not the command: ``trouble`` then says so. Raises :class:`InputError`
    when the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: str | None = None
        self._open_lines: dict[int, bytes] = {}  # by stream: what has come of a line that has not ended
        self._count = 0
        self._counts, self._times_s = array("Q"), array("d")  # lines that had come, and when
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise InputError(f"{path}: cannot be made ({error.strerror}); name another log file") from None

    def write(self, stream: int, data: bytes) -> None:
        """What has just come from a stream; empty at its end."""
        text = self._open_lines.get(stream, b"") + data
        cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        cut = cut or (len(text) if len(text) > LONGEST else 0)
        self._open_lines[stream] = text[cut:]
        if cut:
            self._append(text[:cut])

    def end(self, says: str | None) -> None:
        """Close it, after a command that ended well (None), or with a line of ours: what has no line end then
        stays last, as it is, since its figures may be cut."""
        open_lines = [text for text in self._open_lines.values() if text]
        if says is None:
            self._append(b"".join(text + b"\n" for text in open_lines))
        else:
            self._append(f"{says}\n".encode() + b"".join(open_lines))
        self._file.close()

    def came_s(self, line: int) -> float | None:
        """When a line (the first is 1) had come, by :func:`time.monotonic`; None when it did not."""
        at = bisect_left(self._counts, line)
        return self._times_s[at] if at < len(self._counts) else None

    def _append(self, data: bytes) -> None:
        if self.trouble is not None:
            return
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"
        self._count += data.count(b"\n")
        if not self._counts or self._counts[-1] != self._count:
            self._counts.append(self._count)
            self._times_s.append(time.monotonic())
