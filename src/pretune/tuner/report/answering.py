"""The answer first: what is best, by how much, and where it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.trial import Trial
from pretune.tuner.answer import NAMES, Answer, sentence
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
    told = found.reasons.asdict() if found.reasons else None
    return Section(KEY, TITLE, _gain_first(found.sentences()), [answer_table(found), *_reasons(told)])


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
    tables = [answer_table(found)] if compared else []
    if (written := session.written) is not None:
        words, tables = _gain_first(written["words"]), [*tables, *_reasons(written["reasons"])]
        return Section(KEY, TITLE, words, tables, _to_use(found))
    begun = f"the session is not finished: {counted(len(session.begun), 'trial')} begun and not ended"
    return Section(KEY, TITLE, [*_so_far(found), begun], tables)


def _so_far(found: Answer) -> list[str]:
    """What can be said before the end."""
    best = fastest(found.trials)
    if best is None or found.comparison is None:
        return [f"none of {counted(len(found.trials), 'trial')} ran so far"]
    if not found.comparison.winner.trials:
        knobs = naming(found.trials)(best)
        return [
            f"fastest so far: {_speed(best)} with {knobs} ({best.trial_id}); not compared with the defaults"
        ]
    ratios = found.comparison.over_baselines(found.comparison.winner).items()
    return [sentence(NAMES[role], each) for role, each in ratios if each is not None]


def _gain_first(words: Sequence[str]) -> list[str]:
    """How the search ended comes after what it found."""
    return sorted(words, key=lambda line: line.startswith("the search ended"))


def _reasons(told: Mapping[str, Any] | None) -> list[Table]:
    """What else is good, and what other values of each knob would bring."""
    if told is None:
        return []
    runners = [_point(each) for each in told["runners_up"]]
    why: list[dict[str, Cell]] = [
        {"knob": each["knob"], "best has": _word(each["value"]), "instead": _word(other["value"])}
        | {"predicted ratio": other["predicted"], "measured ratio": other["measured"]}
        | {"chance to run": other["chance_to_run"]}
        for each in told["why"]
        for other in each["alternatives"]
    ]
    return [
        Table.of(runners, "Runners-up"),
        Table.of(why, "Another value of one knob, all else as in the best: throughput over the best's"),
    ]


def _point(told: Mapping[str, Any]) -> dict[str, Cell]:
    headroom = told["headroom_bytes"]
    return {
        "trial": told["trial_id"],
        "tokens/s per device": told["tokens_per_s_per_device"],
        "headroom GiB": None if headroom is None else headroom / 2**30,
        "joules per token": told["joules_per_token"],
    }


def _word(value: object) -> str:
    return "not set" if value is None else str(value)


def _to_use(found: Answer) -> list[str]:
    if found.comparison is None:
        return []
    files = [path.name for path in found.files() if path.exists()]
    yours = "" if found.job.command.run else f" {find_framework(found.job.framework).script}"
    return [f"cd {found.out}  # {', '.join(files)}", f"./launch.sh{yours}"]


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
