"""Before a trial is spent: what would make all of them fail, or every configuration look bad."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pretune.collector.detect import unprobed
from pretune.collector.evidence import read_json, write_json
from pretune.collector.launchers.base import Launcher
from pretune.collector.launchers.ranks import RanksLauncher
from pretune.collector.probe.nodes import SPEEDS
from pretune.datasets.frameworks.base import Problem
from pretune.datasets.platform import Platform
from pretune.datasets.trial import TrialSpec
from pretune.errors import InputError, LaunchError
from pretune.tuner.job import JobSpec
from pretune.tuner.prospect import lacking_memory
from pretune.tuner.session import check_launcher, launchers_of

SLOW = 1.3  # times the usual node: as much as a configuration makes
NODES = "pretune.collector.probe.nodes"


@dataclass(frozen=True)
class NodeSpeed:
    """The slowest rank of a node: seconds of one matrix product, and of one all-reduce within the node."""

    node: int
    host: str
    matmul_s: float
    all_reduce_s: float | None


@dataclass
class Preflight:
    """``problems`` would make trials fail; ``warnings`` need not. ``nodes``: where nothing else is wrong."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    nodes: list[NodeSpeed] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return not self.problems

    def asdict(self) -> dict[str, Any]:
        def shown(found: list[Problem]) -> list[dict[str, str]]:
            return [{"field": each.field, "reason": each.reason} for each in found]

        found = {"problems": shown(self.problems), "warnings": shown(self.warnings)}
        return {"ready": self.ready, **found, "nodes": [asdict(node) for node in self.nodes]}


def preflight(job: JobSpec, out: Path, speeds: bool = True) -> Preflight:
    """Look at the job, at every host and, with ``speeds``, at how fast each is: seconds, and no trial.

    ``out``: the folder of the session to come, which every host must see. Raises :class:`InputError` for
    a job that is wrong wherever it runs.
    """
    found = Preflight()
    with launchers_of(job, out / "preflight")[0] as launcher:
        platform = _platform(job, launcher)
        check_launcher(job, platform, launcher)
        candidates, default = job.candidates(platform), job.default_knobs(platform)
        if isinstance(launcher, RanksLauncher):
            try:
                found.problems += _on_the_hosts(job, platform, launcher)
                if found.ready and speeds:
                    found.nodes = _speeds(launcher, platform.devices_per_node)
                    found.problems += slow_nodes(found.nodes)
            except LaunchError as error:
                found.problems.append(Problem("launcher", _with_last_words(str(error))))
    if (lacking := lacking_memory(candidates, default)) is not None:
        (found.problems if lacking.sure else found.warnings).append(lacking.problem)
    return found


def _platform(job: JobSpec, launcher: Launcher) -> Platform:
    """The job's; with ``auto`` what the launcher reaches, whose memory a trial's own probe will tell."""
    if job.platform != "auto":
        return job.platform
    if not isinstance(launcher, RanksLauncher):
        raise InputError(f"job {job.name}: platform: auto needs a launcher of ranks; name the platform")
    return unprobed(launcher)


def _on_the_hosts(job: JobSpec, platform: Platform, launcher: RanksLauncher) -> Iterator[Problem]:
    """What each host says of the default configuration's trial. Raises :class:`LaunchError`."""
    spec = TrialSpec(
        trial_id="preflight",
        purpose="default",
        workload=job.workload(),
        platform=platform,
        framework=job.framework,
        knobs=job.default_knobs(platform),
        measure=job.measure,
        script=job.command,
    )
    folder = launcher.folder / "hosts"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("found-*.json"):
        old.unlink()
    write_json(folder / "spec.json", spec.model_dump(mode="json"))
    launcher.run("hosts", "pretune.collector.readiness")
    for node, address in enumerate(launcher.addresses):
        said = read_json(folder / f"found-{node}.json")
        if said is None:
            reason = f"does not see {folder} as it is here; --out must be a folder that every host sees"
            yield Problem(f"host {address}", reason)
            continue
        for about, reason in said["findings"]:
            yield Problem(f"host {address}: {about}", reason)


def _speeds(launcher: RanksLauncher, ranks: int) -> list[NodeSpeed]:
    """By node, its slowest rank's figures."""
    told = read_json(launcher.run("speeds", NODES) / SPEEDS)
    by_node = [told[first : first + ranks] for first in range(0, len(told), ranks)]
    return [
        NodeSpeed(
            node,
            each[0]["host"],
            max(rank["matmul_s"] for rank in each),
            max((rank["all_reduce_s"] for rank in each if rank["all_reduce_s"] is not None), default=None),
        )
        for node, each in enumerate(by_node)
    ]


def slow_nodes(nodes: Sequence[NodeSpeed]) -> list[Problem]:
    """The nodes that take ``SLOW`` times as long as the others' median."""
    found = []
    for kind, what in (("matmul_s", "a matrix product"), ("all_reduce_s", "an all-reduce within the node")):
        for node in nodes:
            others = [getattr(each, kind) for each in nodes if each is not node]
            own = getattr(node, kind)
            if own is None or not others or own <= SLOW * median(others):
                continue
            reason = (
                f"{what} takes {own * 1e3:.3g} ms, and {median(others) * 1e3:.3g} ms on the others: it would "
                "make every configuration look bad; leave it out, or find out what else runs there"
            )
            found.append(Problem(f"node {node.node} ({node.host})", reason))
    return found


def _with_last_words(error: str) -> str:
    """With the last line of the log that an error of the launcher points at: ssh's, or the interpreter's."""
    match = re.search(r"; see (\S+\.log)$", error)
    try:
        lines = Path(match[1]).read_text(errors="replace").split("\n") if match else []
    except OSError:
        lines = []
    said = [line.strip() for line in lines if line.strip()]
    return f"{error} ({said[-1]})" if said else error
