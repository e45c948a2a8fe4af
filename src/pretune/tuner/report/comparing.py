"""What knobs are worth, and how policies hold up over platforms."""

from __future__ import annotations

from pretune.errors import InputError
from pretune.tuner.explain import Insight
from pretune.tuner.portability import Portability, portability
from pretune.tuner.portability.scores import cascade as climbed
from pretune.tuner.report.gathered import Gathered
from pretune.tuner.tables import Cell, Section, Table


def effects(gathered: Gathered) -> Section:
    """Measured by pairs of trials, and predicted where pairs are missing: two tables, never mixed."""
    return effects_of(gathered.insights)


def effects_of(insights: list[Insight]) -> Section:
    several = len(insights) > 1
    measured = [row for each in insights for row in measured_effects(each, several)]
    predicted = [row for each in insights for row in predicted_effects(each, several)]
    words = []
    if not several and insights and insights[0].default_share is not None:
        words.append(f"the stock defaults reach {insights[0].default_share:.0%} of the best known throughput")
    known = [row for row in measured if row["throughput ratio"] is not None]
    if not known:
        words.append("not enough data: no knob has three pairs of trials that differ in it alone")
    deciding = [row for row in measured if row not in known and row["fails in"]]
    tables = [  # the first may be empty: it is what the plot is drawn from
        Table.of(known, "Measured: pairs of trials that differ in one knob, with 95 % intervals"),
        Table.of(deciding, "Values that decide whether it runs"),
        Table.of(
            predicted, "Predicted, no measurement: too few pairs; nine tenths of the configurations within"
        ),
    ]
    return Section("effects", "What each knob is worth", words, tables)


def measured_effects(found: Insight, named: bool = False) -> list[dict[str, Cell]]:
    """Rows of ``found``, the largest effect first; ``named`` with the problem that they are of."""
    return [
        (_named(found) if named else {})
        | {
            "knob": each.knob,
            "change": f"{_word(each.reference)} to {_word(each.value)}",
            "throughput ratio": each.ratio,
            "low": each.low,
            "high": each.high,
            "pairs": each.pairs,
            "fails in": f"{each.breaks} more"
            if each.breaks
            else f"{each.mends} fewer"
            if each.mends
            else None,
            "depends on": each.depends_on
            and each.depends_on
            + " ("
            + ", ".join(f"{value}: {ratio:.2f}" for value, ratio in (each.ratios_by or {}).items())
            + ")",
        }
        for each in found.effects
    ]


def predicted_effects(found: Insight, named: bool = False) -> list[dict[str, Cell]]:
    return [
        (_named(found) if named else {})
        | {
            "knob": each.knob,
            "change": f"{_word(each.reference)} to {_word(each.value)}",
            "throughput ratio": each.ratio,
            "low": each.low,
            "high": each.high,
            "configurations": each.configurations,
        }
        for each in found.predicted
    ]


def _named(found: Insight) -> dict[str, Cell]:
    return {"problem": f"{found.problem} on {found.platform}"}


def _word(value: object) -> str:
    return "not set" if value is None else str(value)


def cascade(gathered: Gathered) -> Section | None:
    """Policies over platforms; None where no workload was run on two."""
    if len({trial.platform.name for trial in gathered.trials}) < 2:
        return None
    gathered.progress("portability over platforms")
    try:
        found = portability(list(gathered.trials), budget=0)
    except InputError:
        return None
    words = [
        "efficiency: share of the best known throughput on a platform; platforms in each policy's own order, "
        "its best first",
        "the harmonic mean over all is Pennycook's metric (arXiv:1611.07409); 0 where one is unsupported",
    ]
    rows = [row for each in found for row in _steps(each, len(found) > 1)]
    tables = [Table.of(rows, "Cascade", brief=()), *(policies_table(each) for each in found)]
    return Section("cascade", "Portability over platforms", words, tables)


def _steps(found: Portability, named: bool) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for outcome in found.outcomes:
        if outcome.scores["application"] is None:
            continue
        known = [each for each in outcome.efficiencies["application"] if each is not None]
        for count, (each, so_far) in enumerate(climbed(known), 1):
            row: dict[str, Cell] = {"problem": found.problem} if named else {}
            row |= {"policy": outcome.policy, "platforms": count}
            rows.append(row | {"efficiency": each, "harmonic mean so far": so_far})
    return rows


def policies_table(found: Portability) -> Table:
    """A row a policy: its efficiency on each platform, and what they come to."""
    records: list[dict[str, Cell]] = []
    for outcome in found.outcomes:
        score = outcome.scores["application"]
        each = dict(zip(found.platforms, outcome.efficiencies["application"], strict=True))
        low, high = score.interval if score and score.interval else (None, None)
        records.append(
            {
                "policy": outcome.policy,
                **each,
                "harmonic mean": score.harmonic if score else None,
                "low": low,
                "high": high,
                "worst": score.worst if score else None,
                "runs on, share": score.supported if score else None,
                "note": outcome.note,
            }
        )
    return Table.of(records, f"{found.problem}: share of the best known")
