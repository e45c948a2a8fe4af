"""kill -9 at every kind of moment: no trial lost or doubled, and the same session in the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pretune.datasets import TrialStore

DRIVER = Path(__file__).with_name("kill_driver.py")
MOMENTS = 20


def drive(job, folder, moments, *flags):
    """Run the job once per moment in ``folder/<moment>``; what the driver saw, by moment."""
    command = [sys.executable, str(DRIVER), str(job), str(folder), *map(str, moments), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return {seen["moment"]: seen for seen in map(json.loads, done.stdout.splitlines())}, done.stderr


def trials(out):
    """The stored trials by id, without the session's own id, which differs from session to session."""
    state = json.loads((out / "session.json").read_text())
    return [(t.trial_id.removeprefix(state["id"]), t) for t in TrialStore(out / "trials").trials()]


def ids(out):
    return Counter(name for name, _ in trials(out))


@pytest.fixture
def job(write_job):
    """With all that a session can do in it; no history, since sources would be learned in every process."""
    return write_job(budget={"trials": 3}, strategy="transfer", history="none")


@pytest.fixture
def whole(job, tmp_path):
    """The folder of a session that nobody killed, and the names of the moments that it passed."""
    seen, _ = drive(job, tmp_path, [0])
    return tmp_path / "0", seen[0]["passed"]


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_killed_anywhere_a_session_ends_as_the_one_that_was_not(job, whole, tmp_path, every):
    uninterrupted, names = whole
    kinds: dict[str, list[int]] = {}
    for number, name in enumerate(names, 1):
        kinds.setdefault(name, []).append(number)
    moments = sorted(numbers[len(numbers) // 2] for numbers in kinds.values())
    assert len(moments) >= MOMENTS
    for phase in ("submit", "poll", "append", "rename", "tell", "trial_ended"):
        assert {f"before {phase}", f"after {phase}"} <= set(kinds)
    moments = moments[::every]
    seen, said = drive(job, tmp_path / "killed", moments)
    for moment in moments:
        out, name = tmp_path / "killed" / str(moment), names[moment - 1]
        assert seen[moment]["killed"] == -signal.SIGKILL, name
        assert seen[moment]["resumed"] == 0, f"{name}: {said}"
        assert ids(out) == ids(uninterrupted), f"{name}: a trial was lost or doubled"
        resumed = {suffix: trial.knobs for suffix, trial in trials(out)}
        assert resumed == {suffix: trial.knobs for suffix, trial in trials(uninterrupted)}, name
        assert TrialStore(out / "trials").validate() == [], name


def test_no_trial_that_had_ended_is_run_again(job, whole, tmp_path):
    _, names = whole
    moment = [number for number, name in enumerate(names, 1) if name == "after append"][1]
    seen, _ = drive(job, tmp_path / "killed", [moment])
    submitted = seen[moment]["passed"].count("before submit")
    log = (tmp_path / "killed" / f"{moment}.moments").read_text().splitlines()
    assert submitted == 2
    assert log.count("before submit") == names.count("before submit")


def test_without_the_atomic_rename_a_kill_leaves_damage(job, tmp_path):
    seen, _ = drive(job, tmp_path, [0], "--torn")
    moment = seen[0]["passed"].index("half written") + 1
    seen, _ = drive(job, tmp_path / "torn", [moment], "--torn")
    assert seen[moment]["killed"] == -signal.SIGKILL
    assert TrialStore(tmp_path / "torn" / str(moment) / "trials").validate() != []


def test_a_trial_with_a_sheet_is_run_again_from_the_same_sheet(job, whole, tmp_path):
    _, names = whole
    moment = [number for number, name in enumerate(names, 1) if name == "before submit"][1]
    drive(job, tmp_path / "killed", [moment])
    out = tmp_path / "killed" / str(moment)
    sheets = {
        path.parent.name: json.loads(path.read_text()) for path in (out / "runs").glob("*-t*/spec.json")
    }
    stored = {trial.trial_id: trial for _, trial in trials(out)}
    assert len(sheets) == 3
    for trial_id, sheet in sheets.items():
        assert stored[trial_id].spec.model_dump(mode="json") == sheet
