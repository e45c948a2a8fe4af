"""One report of a session or a store: sections of words and tables, and what shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pretune.tuner.report.answering import answer
from pretune.tuner.report.believed import believed
from pretune.tuner.report.comparing import cascade, effects
from pretune.tuner.report.gathered import Gathered, gather
from pretune.tuner.report.over_time import failures, over_time
from pretune.tuner.report.reproducing import reproducing
from pretune.tuner.report.resources import memory, step_time
from pretune.tuner.tables import Section

SECTIONS: tuple[Callable[[Gathered], Section | None], ...] = (
    answer,
    over_time,
    believed,
    memory,
    effects,
    step_time,
    cascade,
    failures,
    reproducing,
)


@dataclass(frozen=True)
class Report:
    """What the page, the terminal and the notebook show: the same sections, in the same order."""

    name: str
    subject: str
    place: str
    sections: list[Section]

    def asdict(self) -> dict[str, Any]:
        sections = {section.key: section.asdict() for section in self.sections}
        return {"name": self.name, "subject": self.subject, "place": self.place, "sections": sections}

    def _repr_html_(self) -> str:
        return "".join(section._repr_html_() for section in self.sections)


def report(place: str, progress: Callable[[str], None] = lambda _: None) -> Report:
    """The report of a session's folder, finished or not, or of a store (a folder, a URL, ``shipped``).

    ``progress`` is told what takes seconds. Raises :class:`InputError` where nothing is recorded.
    """
    gathered = gather(place, progress)
    found = [section for make in SECTIONS if (section := make(gathered))]
    return Report(gathered.name, gathered.subject, place, found)
