"""What is seen while a session runs: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pretune.cli.show import OUTSIDE
from pretune.datasets.frameworks import framework
from pretune.datasets.trial import Trial
from pretune.tuner.job import JobSpec
from pretune.tuner.runner import Row, Watcher

REFRESH_S = 1.0  # drawing costs CPU time, which on a CPU platform the trial needs
SEARCHING = ("search", "history", "control")  # a row each; what is compared has one per configuration


@contextmanager
def watcher(job: JobSpec) -> Iterator[Watcher]:
    """The watcher that suits standard error."""
    defaults = {name: knob.default for name, knob in framework(job.framework).knobs.items()}
    knobs = {name: defaults.get(name) for name in job.space}
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainWatcher(knobs)
        return
    live = Live(console=console, auto_refresh=False, redirect_stdout=False)
    watching = LiveWatcher(knobs, live)
    with live:
        yield watching


class PlainWatcher(Watcher):
    """One line when a trial starts, one when it ended."""

    def __init__(self, knobs: dict[str, Any]) -> None:
        self.knobs = knobs

    def spent(self, text: str) -> None:
        self.note(f"spent: {text}")

    def begun(self, row: Row) -> None:
        expected = f", expected {interval(row)}" if row.predicted else ""
        if row.predicted and row.predicted.out_of_domain:
            expected += f" outside of what was learned: {row.predicted.out_of_domain}"
        self.note(f"{row.spec.trial_id}: started{expected}: {settings(row, self.knobs)}")

    def ended(self, row: Row) -> None:
        assert row.trial
        self.note(f"{row.spec.trial_id}: {row.trial.status}: {outcome(row.trial)}")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class LiveWatcher(Watcher):
    """A table of the search, a line per configuration that is compared, and the time left."""

    def __init__(self, knobs: dict[str, Any], live: Live) -> None:
        self.knobs, self.live = knobs, live
        self.searched: list[Row] = []
        self.compared: dict[str, list[Row]] = {}
        self.walls_s: list[float] = []
        self.left: tuple[int | None, float | None] = (None, None)
        self.spent_text = ""
        self._drawn = 0.0

    def expect(self, trials: int | None, seconds: float | None = None) -> None:
        self.left = (trials, seconds)
        if trials == 0:
            self._draw()

    def spent(self, text: str) -> None:
        self.spent_text = text

    def begun(self, row: Row) -> None:
        self._rows(row).append(row)
        self._draw()

    def waiting(self, row: Row) -> None:
        if time.monotonic() - self._drawn >= REFRESH_S:
            self._draw()

    def ended(self, row: Row) -> None:
        if row not in self._rows(row):
            self._rows(row).append(row)  # it had ended in an earlier session
        assert row.trial
        self.walls_s.append(row.trial.wall_s or 0.0)
        self._draw()

    def note(self, text: str) -> None:
        self.live.console.print(text, highlight=False)

    def _rows(self, row: Row) -> list[Row]:
        if row.spec.purpose in SEARCHING:
            return self.searched
        role = row.spec.trial_id.rsplit("-", 1)[1].split(".")[0]  # not which attempt it is
        return self.compared.setdefault(role, [])

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        parts: list[RenderableType] = [self._search_table(), self._time_left()]
        if self.compared:
            parts.insert(1, self._compare_table())
        if any(row.predicted and row.predicted.out_of_domain for row in self.searched):
            parts.insert(1, Text(OUTSIDE, style="dim"))
        self.live.update(Group(*parts), refresh=True)

    def _search_table(self) -> Table:
        table = Table(title="trials", title_justify="left", expand=False)
        for name in ("#", "status"):
            table.add_column(name, no_wrap=True)
        for name in ("tokens/s/device", "predicted (90 %)"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("knobs", overflow="fold")
        best = max((speed(row.trial) for row in self.searched), default=0.0)
        for number, row in enumerate(self.searched):
            won = row.trial is not None and speed(row.trial) == best > 0
            table.add_row(
                str(number),
                status(row),
                f"{speed(row.trial):,.0f}" if speed(row.trial) else "",
                interval(row) if row.predicted else "",
                settings(row, self.knobs),
                style="bold green" if won else None,
            )
        return table

    def _compare_table(self) -> Table:
        table = Table(title="winner and defaults, in turn", title_justify="left")
        for name in ("configuration", "runs", "status"):
            table.add_column(name, no_wrap=True)
        table.add_column("tokens/s/device", justify="right", no_wrap=True)
        for role, rows in self.compared.items():
            speeds = [speed(row.trial) for row in rows if speed(row.trial)]
            mean = f"{statistics.mean(speeds):,.0f}" if speeds else ""
            spread = f" ± {statistics.stdev(speeds):,.0f}" if len(speeds) > 1 else ""
            table.add_row(role, str(len(speeds)), status(rows[-1]), mean + spread)
        return table

    def _time_left(self) -> Text:
        trials, seconds = self.left
        if trials is not None and self.walls_s:
            by_trials = trials * statistics.mean(self.walls_s)
            seconds = by_trials if seconds is None else min(by_trials, seconds)
        parts = [self.spent_text, f"about {clock(seconds)} left" if seconds else ""]
        return Text(", ".join(filter(None, parts)), style="dim")


def status(row: Row) -> str:
    """``running 12 s``, or how the trial ended."""
    return str(row.trial.status) if row.trial else f"running {time.monotonic() - row.began:.0f} s"


def speed(trial: Trial | None) -> float:
    """tokens_per_s_per_device; 0 where there is none to show."""
    return (trial.tokens_per_s_per_device or 0.0) if trial else 0.0


def outcome(trial: Trial) -> str:
    """The throughput, or why there is none."""
    return f"{speed(trial):,.0f} tokens/s per device" if trial.ok else str(trial.cause)


def interval(row: Row) -> str:
    assert row.predicted
    found = row.predicted
    mark = " ~" if found.out_of_domain else ""
    return f"{found.tokens_per_s_per_device:,.0f} ({found.low:,.0f} to {found.high:,.0f}){mark}"


def settings(row: Row, knobs: dict[str, Any]) -> str:
    """The knobs of the space that differ from their defaults (name -> default)."""
    values: dict[str, Any] = row.spec.knobs.settings()
    changed = [f"{name}={values[name]}" for name in knobs if name in values and values[name] != knobs[name]]
    return " ".join(changed) or "defaults"


def clock(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"{whole // 60}:{whole % 60:02d}"
