"""What a terminal shows while a session runs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.live import Live

from pretune.cli.progress import LiveWatcher, PlainWatcher
from pretune.cli.show import show_ranking
from pretune.datasets import TrialStore
from pretune.tuner.runner import Row
from pretune.tuner.tuner import Predicted


@pytest.fixture
def rows(recorded):
    """One trial that ran and one that did not, as search rows."""
    trials = sorted(TrialStore(recorded).trials(), key=lambda t: t.trial_id)
    chosen = [next(t for t in trials if t.ok == ok) for ok in (True, False)]
    searched = [t.model_copy(update={"purpose": "search"}) for t in chosen]
    return [Row(t.spec, Predicted(1234.0, 1000.0, 1500.0, 0.9), 0.0, t) for t in searched]


@pytest.fixture
def screen():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        yield LiveWatcher({"micro_batch": None, "zero_stage": 0}, live), console.file


def test_the_table_shows_status_throughput_prediction_and_time_left(rows, screen):
    watcher, file = screen
    watcher.expect(4)
    for row in rows:
        watcher.ended(row)
    running = Row(rows[0].spec.model_copy(update={"trial_id": "s-t009"}), None, 0.0)
    watcher.begun(running)
    shown = file.getvalue()
    assert f"{rows[0].trial.tokens_per_s_per_device:,.0f}" in shown
    assert "1,234 (1,000 to 1,500)" in shown
    assert "oom" in shown
    assert "running " in shown
    assert "micro_batch=" in shown
    assert "about 0:04 left" in shown  # each of the recorded trials took one second
    file.truncate(0)
    watcher.expect(0)
    assert "left" not in file.getvalue().splitlines()[-1]


def test_a_prediction_outside_of_what_was_learned_is_marked(rows, screen, capsys):
    watcher, file = screen
    watcher.ended(rows[0])
    assert "~" not in file.getvalue()
    guessed = Row(rows[1].spec, replace(rows[1].predicted, out_of_domain="no such link"), 0.0, rows[1].trial)
    watcher.ended(guessed)
    assert "1,234 (1,000 to 1,500) ~" in file.getvalue()
    assert "outside of what was learned" in file.getvalue()
    PlainWatcher({}).begun(guessed)
    assert "1,500) ~ outside of what was learned: no such link" in capsys.readouterr().err


def test_a_ranking_marks_what_lies_outside_of_what_was_learned(capsys):
    predicted = {"tokens_per_s_per_device": 9.0, "low": 8.0, "high": 10.0, "chance_to_run": 1.0}
    ranking = [{"knobs": {}, "predicted": predicted | {"out_of_domain": why}} for why in (None, "odd")]
    result = {"workload": "w", "platform": "p", "candidates": 2}
    show_ranking(result | {"ranking": ranking[:1]}, [])
    assert "~" not in capsys.readouterr().out
    show_ranking(result | {"ranking": ranking}, [])
    shown = capsys.readouterr().out
    assert shown.count("8 to 10") == 2
    assert shown.count("8 to 10 ~") == 1
    assert "outside of what was learned" in shown


def test_what_is_compared_is_one_line_each(rows, screen):
    watcher, file = screen
    for name in ("s-v00-winner", "s-v01-winner", "s-v01-winner.2"):  # an attempt was interrupted
        spec = rows[0].spec.model_copy(update={"trial_id": name, "purpose": "verify"})
        watcher.ended(Row(spec, None, 0.0, rows[0].trial))
    last = file.getvalue().rsplit("in turn", 1)[1]
    assert last.count("winner") == 1
    assert "│ 3 " in last
    assert "± 0" in last


def test_plain_lines_say_why_a_trial_failed(rows, capsys):
    watcher = PlainWatcher({"zero_stage": None})
    watcher.begun(rows[1])
    watcher.ended(rows[1])
    said = capsys.readouterr().err.splitlines()
    assert "expected 1,234 (1,000 to 1,500): zero_stage=" in said[0]
    assert said[1].endswith("oom: the kernel killed rank 0 for memory")


def test_a_campaign_is_a_row_per_trial_and_compares_nothing(rows, screen):
    watcher, file = screen
    for number, purpose in enumerate(("control", "history", "history")):
        spec = rows[0].spec.model_copy(update={"trial_id": f"s-{number:04d}", "purpose": purpose})
        watcher.ended(Row(spec, None, 0.0, rows[0].trial))
    assert "in turn" not in file.getvalue()
    assert "│ 2 " in file.getvalue()
