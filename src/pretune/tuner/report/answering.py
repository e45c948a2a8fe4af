"""The answer first: what is best, by how much, and where it lies."""

from __future__ import annotations

from pretune.datasets.trial import Trial
from pretune.tuner.answer import Answer
from pretune.tuner.recall import Recalled
from pretune.tuner.report.gathered import Gathered, counted, naming
from pretune.tuner.tables import Cell, Section, Table
from pretune.tuner.tuner import fastest
from pretune.tuner.verify import Measured

KEY, TITLE = "answer", "The answer"


def answer(gathered: Gathered) -> Section:
    if gathered.session:
        return _of_session(gathered.session)
    return Section(KEY, TITLE, *_of_store(gathered))


def answered(found: Answer) -> Section:
    """What a session that came to its end shows of itself."""
    return Section(KEY, TITLE, found.sentences(), [answer_table(found)])


def answer_table(found: Answer) -> Table:
    """The winner and the baselines that it was compared with, a row each."""
    if found.comparison is None:
        return Table((), [])
    roles: dict[str, Measured | None] = {
        "winner": found.comparison.winner,
        "stock defaults": found.comparison.default,
        "defaults, largest micro batch": found.comparison.careful,
    }
    measured = {name: each for name, each in roles.items() if each is not None}
    settings = [each.knobs.settings() for each in measured.values()]
    names = [
        n for n in dict.fromkeys(n for s in settings for n in s) if len({s.get(n) for s in settings}) > 1
    ]
    records: list[dict[str, Cell]] = []
    for name, each in measured.items():
        told = each.asdict()
        records.append(
            {
                "configuration": name,
                "tokens/s per device": each.tokens_per_s_per_device,
                "standard deviation": told["spread"],
                "runs": len(each.trials),
                "failed": len(told["failed"]),
                **{knob: each.knobs.settings().get(knob) for knob in names},
            }
        )
    return Table.of(records, "Run in turn, so that a drift of the machine meets all alike")


def _of_session(session: Recalled) -> Section:
    found = session.answer
    compared = found.comparison is not None and any(found.comparison.winner.trials)
    words = found.sentences() if session.finished or found.comparison is None else []
    best = fastest(found.trials)
    if best is not None and not compared:
        knobs = naming(found.trials)(best)
        words = [
            f"fastest so far: {_speed(best)} with {knobs} ({best.trial_id}); not compared with the defaults"
        ]
    elif best is not None and not session.finished:
        words = [*found.sentences()[:-1], "the comparison is not finished"]
    if not session.finished:
        words.append(
            f"the session is not finished: {counted(len(session.begun), 'trial')} begun and not ended"
        )
    tables = [answer_table(found)] if compared else []
    return Section(KEY, TITLE, words, tables, _to_use(found) if session.finished else [])


def _to_use(found: Answer) -> list[str]:
    if found.comparison is None:
        return []
    files = [path.name for path in found.files() if path.exists()]
    return [f"cd {found.out}  # {', '.join(files)}", "./launch.sh train.py"]


def _of_store(gathered: Gathered) -> tuple[list[str], list[Table]]:
    records: list[dict[str, Cell]] = []
    for name, trials in gathered.problems.items():
        best, failed = fastest(trials), sum(not trial.ok for trial in trials)
        records.append(
            {
                "problem": name,
                "trials": len(trials),
                "failed": failed,
                "best tokens/s per device": best.tokens_per_s_per_device if best else None,
                "best knobs": naming(trials)(best) if best else None,
            }
        )
    platforms = {trial.platform.name for trial in gathered.trials}
    words = [
        f"{counted(len(gathered.trials), 'trial')} on {counted(len(platforms), 'platform')}; "
        "throughputs are compared within one workload on one platform only"
    ]
    return words, [Table.of(records, "The best known configuration of each")]


def _speed(trial: Trial) -> str:
    return f"{trial.tokens_per_s_per_device:,.0f} tokens/s per device"
