"""One node of a trial that runs a script of the user's: ``run(FOLDER)``, where an agent forked it.

It writes the framework's files into FOLDER, fills in the command's template, runs it there as a user would,
and follows its output (``output-N.log`` of node N). What it leaves is read as that of a rank of pretune's
own program (:mod:`.evidence`): ``progress.json`` while lines come, ``rank-N.json``, and ``result.json`` from
the node on which steps were measured. A recorder in the script knows more than its output tells: it goes
first.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pretune.collector import sheet
from pretune.collector.evidence import write_json
from pretune.collector.guard import GRACE_S
from pretune.collector.measured import Verdict, verdict
from pretune.collector.process import adopt_orphans, enter_control_groups, family, kill
from pretune.collector.record import Recording
from pretune.collector.step_lines import Enough
from pretune.collector.timed_log import TimedLog
from pretune.datasets.durable import whole_file
from pretune.datasets.frameworks import framework
from pretune.datasets.knobs import KnobValue
from pretune.datasets.script import file_placeholder
from pretune.datasets.trial import Status, TrialSpec
from pretune.errors import InputError

NEWS_S = 0.5  # between looks at what the script has done
LEAVE_S = 1.0  # what a script gets to end by itself once it is measured
# what tells a rank of pretune's own who it is: a script's launcher gives its ranks their own
_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def run(folder: Path) -> int:
    """Run the script on this node to its end; 0 when nothing is wrong with what it did, else 1.

    ``os.EX_IOERR`` when FOLDER takes no more: the host's trouble, which says nothing of the configuration.
    """
    try:
        return _run(folder)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        return os.EX_IOERR


def _run(folder: Path) -> int:
    adopt_orphans()
    node = int(os.environ["GROUP_RANK"])
    sheet.report("script", 0)
    try:
        spec = sheet.trial_here()
        assert spec is not None, "the launcher names the sheet"
        found = _followed(spec, folder, node)
    except InputError as error:  # another sheet than the launcher's
        found = Verdict(Status.INVALID, str(error))
    kill([each for each in family(os.getpid()) if each.pid != os.getpid()])  # what it left behind
    failed = found.status is not Status.OK
    if found.measured and not failed:
        write_json(folder / "result.json", found.measured)
    told = {"rank": node, "host": socket.gethostname(), "time": time.time(), "status": str(found.status)}
    why = {"cause" if failed else "silent": found.cause} if found.cause else {}
    write_json(folder / f"rank-{node}.json", told | why)
    return int(failed)


def _followed(spec: TrialSpec, folder: Path, node: int) -> Verdict:
    """What came of the command."""
    for name, text in _files(spec).items():
        with whole_file(folder / name, durable=False) as file:  # every node writes the same, and may read it
            file.write(text.encode())
    words = spec.script.words(values(spec, folder, node))
    log = TimedLog(_fresh(folder / f"output-{node}.log"))
    recording = Recording(folder, log)
    enter_control_groups()
    with _into_nowhere():
        try:
            recording.start(words, _environment(spec), spec.script.folder)
        except OSError as error:
            log.end(None)
            why = f"{words[0]} cannot be run in {spec.script.folder} ({error.strerror})"
            return Verdict(Status.INVALID, why)
        with recording.guarded():
            recording.follow(_Watch(spec, recording, folder))
    if log.trouble:
        raise OSError(log.trouble)
    if (folder / sheet.ENOUGH).exists():  # what it ended with is our doing
        recording.ended = replace(recording.ended, stopped_by=signal.SIGTERM)
    return verdict(spec, recording, sheet.handed_over(folder))


def values(spec: TrialSpec, folder: Path, node: int) -> dict[str, KnobValue]:
    """What stands for each placeholder on this node, the framework's files being in ``folder``."""
    workload, platform = spec.workload, spec.platform
    of_the_trial: dict[str, KnobValue] = {
        "devices": platform.devices,
        "devices_per_node": platform.devices_per_node,
        "nodes": platform.nodes,
        "sequence_length": workload.sequence_length,
        "global_batch_sequences": workload.global_batch_sequences,
        "global_batch_tokens": workload.global_batch_tokens,
        "steps": spec.measure.most_steps,
        "seed": spec.seed,
        "trial_id": spec.trial_id,
        "folder": str(folder),
        "node_rank": node,
        "master_addr": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "master_port": os.environ.get("MASTER_PORT", "0"),
        "python": sys.executable,
    }
    paths: dict[str, KnobValue] = {file_placeholder(name): str(folder / name) for name in _files(spec)}
    return spec.knobs.settings() | of_the_trial | paths


def _files(spec: TrialSpec) -> dict[str, str]:
    return framework(spec.framework).files_to_follow(spec.workload, spec.platform, spec.knobs)


def _environment(spec: TrialSpec) -> dict[str, str]:
    """This process's, with the knobs that are variables."""
    inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
    threads = {"OMP_NUM_THREADS": str(spec.knobs.threads_per_rank)} if spec.knobs.threads_per_rank else {}
    return inherited | threads | spec.knobs.environment()


def _fresh(path: Path) -> Path:
    path.unlink(missing_ok=True)  # of a run of this trial that a killed session left
    return path


@contextmanager
def _into_nowhere() -> Iterator[None]:
    """The log keeps what the script prints; there is nobody to pass it on to."""
    kept, null = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(null, stream)
        yield
    finally:
        for stream, before in zip((1, 2), kept, strict=True):
            os.dup2(before, stream)
            os.close(before)
        os.close(null)


class _Watch:
    """Called while the script runs: tells the launcher that it prints, and ends it once it is measured.

    Every node watches for what any of them finds: ranks that lose their peers fail.
    """

    def __init__(self, spec: TrialSpec, recording: Recording, folder: Path) -> None:
        self.recording, self.folder = recording, folder
        self.enough = Enough(spec.script.step_line, spec.measure)
        self.looked_s = 0.0
        self.read = 0  # bytes of the output
        self.measured_s: float | None = None

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self.looked_s < NEWS_S:
            return
        self.looked_s = now
        if self.measured_s is not None:
            self._end(now - self.measured_s)
            return
        lines = self._lines()
        if lines:
            sheet.report("script", self.enough.steps)
        if self.enough.told(lines, now):
            write_json(self.folder / sheet.ENOUGH, {"steps": self.enough.steps}, durable=False)
        if any((self.folder / name).exists() for name in (sheet.RECORDED, sheet.ENOUGH)):
            self.measured_s = now

    def _lines(self) -> str:
        """What was printed since the last look."""
        with self.recording.log.path.open("rb") as log:
            log.seek(self.read)
            told = log.read()
        self.read += len(told)
        return told.decode(errors="replace")

    def _end(self, since_s: float) -> None:
        """What is measured need not go on: it may end by itself, is asked to, is killed."""
        sheet.report("ending", 0)
        if since_s > LEAVE_S + GRACE_S:
            kill(family(self.recording.command.process.pid))
        elif since_s > LEAVE_S:
            self.recording.command.stop()
