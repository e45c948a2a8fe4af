"""Sessions that kill themselves with SIGKILL: ``kill_driver.py JOB FOLDER MOMENT... [--torn]``.

For each moment a fresh process runs the job in FOLDER/<moment> until the n-th moment passes
(0: to the end), and is then run again to the end where it was killed. Moments are counted
over a whole session: just before and after each step of each trial, and around renames.
Prints one JSON object a line: moment, passed (the names), killed, resumed (exit codes,
negative for a signal). ``--torn`` takes the atomic rename out of the store: a file is written
where it is read, with a moment in its middle, and nothing is resumed.

Every session is a fork of this process, which has imported all and run nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pretune.collector.launchers.replay import ReplayLauncher
from pretune.datasets.store import TrialStore
from pretune.mlflow_config import NoTracker
from pretune.tuner import journal, runner, session
from pretune.tuner.job import JobSpec
from pretune.tuner.session import TuningSession
from pretune.tuner.tuner import Tuner

wanted = 0
passed: list[str] = []
log: Path


def moment(name: str) -> None:
    passed.append(name)
    with log.open("a") as file:
        file.write(name + "\n")
    if len(passed) == wanted:
        os.kill(os.getpid(), signal.SIGKILL)


def around(owner, name: str) -> None:
    original = getattr(owner, name)

    def wrapped(*arguments, **options):
        what = f"{name} {arguments[0].name}" if name == "write_json" else name
        if name == "rename" and not str(arguments[1]).endswith(".parquet"):
            what = "replace"  # of a JSON file
        moment(f"before {what}")
        result = original(*arguments, **options)
        moment(f"after {what}")
        return result

    setattr(owner, name, wrapped)


def tear_the_store() -> None:
    """Write Parquet files where they are read, with a moment in the middle."""

    whole = os.rename

    def rename(temporary: str | Path, path: str | Path) -> None:
        if not str(path).endswith(".parquet"):
            whole(temporary, path)
            return
        data = Path(temporary).read_bytes()
        Path(temporary).unlink()
        with Path(path).open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            moment("half written")
            file.write(data[len(data) // 2 :])

    os.rename = rename


for owner, name in (
    (Tuner, "ask"),
    (Tuner, "tell"),
    (runner, "write_json"),
    (session, "write_json"),
    (journal, "write_json"),
    (ReplayLauncher, "submit"),
    (ReplayLauncher, "poll"),
    (TrialStore, "append"),
    (NoTracker, "session_begun"),
    (NoTracker, "trial_begun"),
    (NoTracker, "trial_ended"),
    (NoTracker, "session_ended"),
):
    around(owner, name)
if "--torn" in sys.argv:
    tear_the_store()
else:
    around(os, "rename")


def forked(job: str, out: Path, kill_at: int) -> int:
    """Run the job in a child; its exit code, negative for a signal."""
    global wanted
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    wanted = kill_at
    try:
        TuningSession(JobSpec.from_yaml(job), out, NoTracker()).run()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


arguments = [argument for argument in sys.argv[1:] if argument != "--torn"]
for number in map(int, arguments[2:]):
    out = Path(arguments[1]) / str(number)
    log = out.with_suffix(".moments")
    killed = forked(arguments[0], out, number)
    names = log.read_text().splitlines()
    resumed = forked(arguments[0], out, 0) if killed and "--torn" not in sys.argv else None
    print(json.dumps({"moment": number, "passed": names, "killed": killed, "resumed": resumed}), flush=True)
