"""What the importers of logs share: lines one at a time, and the mean of steps after a warm-up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.errors import InputError

LONGEST = 1 << 16  # characters of a line that are read; a progress bar may go on for megabytes
KEPT = 1000  # windows whose times are kept; the mean is over all of them
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OOM = re.compile(r"\b(?:torch(?:\.cuda)?\.OutOfMemoryError|RuntimeError): (?:CUDA|HIP|NPU) out of memory")
_EXCEPTION = re.compile(r"^(?:\S*\s)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): (.*)$")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number (the first is 1) and line, without colours; bytes that are no UTF-8 are replaced.

    Raises :class:`InputError` when the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            number = 0
            while text := file.readline(LONGEST):
                number += 1
                line = text
                while text and not text.endswith("\n"):  # the rest of a line that is too long
                    text = file.readline(LONGEST)
                yield number, _ESCAPES.sub("", line).rstrip("\r\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None


def number(text: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


@dataclass
class Steps:
    """The steps of one run. The first entry is the warm-up's, as soon as there is a second."""

    first_s: float | None = None
    total_s: float = 0.0
    count: int = 0
    kept_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # the first and the last

    def add(self, seconds: float, loss: float | None) -> None:
        if loss is not None:
            self.losses = [*self.losses[:1], loss]
        if self.first_s is None:
            self.first_s = seconds
            return
        self.total_s += seconds
        self.count += 1
        if len(self.kept_s) < KEPT:
            self.kept_s.append(seconds)

    def values(self) -> dict[str, Any]:
        """By column of the store; empty when no step was seen."""
        if self.first_s is None:
            return {}
        mean = self.total_s / self.count if self.count else self.first_s
        losses = dict(zip(("loss_first", "loss_last"), (self.losses * 2)[:2], strict=False))
        if len(self.losses) == 2:
            losses["loss_last"] = self.losses[1]
        return {
            "step_time_s": mean,
            "window_times_s": self.kept_s,
            "warmup_windows": 1 if self.count else 0,
            **losses,
        }


class Failure:
    """What a log says of how its run failed: the first out of memory, else the last exception."""

    def __init__(self) -> None:
        self.oom: str | None = None
        self.exception: str | None = None

    def see(self, line: str) -> None:
        if self.oom is None and _OOM.search(line):
            self.oom = line.strip()[:300]
        elif found := _EXCEPTION.match(line):
            self.exception = f"{found[1]}: {found[2]}"[:300]

    def values(self, measured: bool) -> dict[str, Any]:
        """An exception after enough was measured does not undo it; that memory ran out does."""
        if self.oom:
            return {"status": "oom", "cause": self.oom}
        if self.exception and not measured:
            return {"status": "crash", "cause": self.exception}
        return {}
