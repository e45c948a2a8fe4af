"""A report in the terminal: the same sections as the page, without its plots."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Shown

from pretune.tuner.report import Report
from pretune.tuner.tables import Table, shown

MOST_ROWS = 12


def show_report(report: Report) -> None:
    """Words and tables of every section; of a long table the first rows, and how many there are."""
    console = Console()
    for section in report.sections:
        console.rule(section.title, align="left")
        for line in section.words:
            console.print(line, highlight=False)
        for table in (each.shortened() for each in section.tables):
            if table.rows and table.columns:
                console.print(rich_table(table))
        for command in section.commands:
            console.print(f"$ {command}", highlight=False, soft_wrap=True)


def rich_table(table: Table) -> Shown:
    more = f" (the first {MOST_ROWS} of {len(table.rows):,})" if len(table.rows) > MOST_ROWS else ""
    drawn = Shown(title=table.title + more, title_justify="left")
    for number, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if table.numeric(number) else "left", overflow="fold")
    for row in table.rows[:MOST_ROWS]:
        drawn.add_row(*map(shown, row))
    return drawn
