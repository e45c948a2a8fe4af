"""What made these figures, and the commands that make them again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pretune.datasets.trial import Trial
from pretune.tuner.budget import in_words
from pretune.tuner.recall import Recalled
from pretune.tuner.report.gathered import Gathered
from pretune.tuner.session import JOB
from pretune.tuner.tables import Cell, Section, Table


def reproducing(gathered: Gathered) -> Section:
    """The session's own job, platform and versions; of a store, what was run where."""
    place = shlex.quote(gathered.place)
    if gathered.session:
        words, commands = _session(gathered.session, place)
    else:
        words = ["the tables of this page come from these commands"]
        commands = [f"pretune {name} --history {place}" for name in ("explain", "portability")]
        commands += [f"pretune fit --history {place}"]
    commands.append(f"pretune report {place}  # this page")
    return Section("reproduce", "To do it again", words, [_versions(gathered.trials)], commands)


def _session(session: Recalled, place: str) -> tuple[list[str], list[str]]:
    job, state = session.answer.job, session.answer.state
    what = f"{job.strategy}, seed {job.seed}, history {job.history.path}"
    words = [
        f"session {state.id}, begun {state.created_at:%Y-%m-%d %H:%M} UTC, "
        f"{in_words(session.answer.spent)}; {what}"
    ]
    return words, [
        f"pretune tune {place}/{JOB} --out {place}  # goes on where it stopped",
        f"pretune tune {place}/{JOB} --out {place}-again  # the same search from the beginning",
        f"pretune ui --out {place}  # the runs in MLflow",
    ]


def _versions(trials: Sequence[Trial]) -> Table:
    """One row a platform: its hardware, its hosts, and every version that was met there."""
    records: list[dict[str, Cell]] = []
    by_platform: dict[str, list[Trial]] = {}
    for trial in trials:
        by_platform.setdefault(trial.platform.name, []).append(trial)
    for name, mine in by_platform.items():
        platform = mine[0].platform
        versions: dict[str, dict[str, None]] = {}
        for trial in mine:
            for component, version in trial.software.items():
                versions.setdefault(component, {})[version] = None
        records.append(
            {
                "platform": name,
                "accelerator": platform.accelerator.name,
                "devices": platform.devices,
                "nodes": platform.nodes,
                "hosts": ", ".join(dict.fromkeys(host for trial in mine for host in trial.hosts)),
                "first trial": f"{min(trial.created_at for trial in mine):%Y-%m-%d}",
                "software": ", ".join(f"{n} {' / '.join(v)}" for n, v in sorted(versions.items())),
            }
        )
    return Table.of(records, "Platforms and versions")
