"""What a result is wherever it is shown: sections of words and tables, without a medium of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

Cell = str | int | float | None

MOST_ROWS = 200  # of a table on a page; the plot beside it and the store have all


@dataclass(frozen=True)
class Table:
    """Rows under ``columns``, every figure unrounded; None where there is nothing to tell.

    ``brief``: the columns for which a terminal has room; None: all; empty: words say enough there.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    title: str = ""
    brief: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls, records: Sequence[Mapping[str, Cell]], title: str = "", brief: tuple[str, ...] | None = None
    ) -> Table:
        """Columns as the records first name them, without those that are empty throughout."""
        names = dict.fromkeys(name for record in records for name in record)
        filled = tuple(n for n in names if any(record.get(n) not in (None, "") for record in records))
        return cls(filled, [tuple(record.get(n) for n in filled) for record in records], title, brief)

    def records(self) -> list[dict[str, Cell]]:
        """The rows as what plots are drawn from."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def numeric(self, column: int) -> bool:
        """Whether it holds figures alone, and is set flush right."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and not any(isinstance(cell, str) for cell in cells)

    def shortened(self) -> Table:
        """The table with its :attr:`brief` columns alone."""
        kept = [i for i, n in enumerate(self.columns) if self.brief is None or n in self.brief]
        columns = tuple(self.columns[i] for i in kept)
        return Table(columns, [tuple(row[i] for i in kept) for row in self.rows], self.title)

    def asdict(self) -> dict[str, Any]:
        return {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows]}

    def markdown(self) -> str:
        """As GitHub and MLflow read it."""
        lines = [self.columns, ["--:" if self.numeric(i) else "---" for i in range(len(self.columns))]]
        lines += [tuple(map(shown, row)) for row in self.rows]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )

    def _repr_html_(self) -> str:
        """The first :data:`MOST_ROWS` rows; each figure keeps all its digits in ``data value``."""
        caption = self.title
        if len(self.rows) > MOST_ROWS:
            caption += f" (the first {MOST_ROWS} of {len(self.rows):,})"
        classes = ['class="number"' if self.numeric(i) else "" for i in range(len(self.columns))]
        head = "".join(
            f'<th scope="col" {c}>{escape(n)}</th>' for n, c in zip(self.columns, classes, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(f"<td {c}>{_html(cell)}</td>" for cell, c in zip(row, classes, strict=True))
            + "</tr>"
            for row in self.rows[:MOST_ROWS]
        )
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    __html__ = _repr_html_  # a template takes it as it is


@dataclass(frozen=True)
class Section:
    """One question with its answer: ``words``, then ``tables``, then ``commands`` to be typed."""

    key: str
    title: str
    words: Sequence[str] = ()
    tables: Sequence[Table] = field(default_factory=list)
    commands: Sequence[str] = ()

    def asdict(self) -> dict[str, Any]:
        tables = [table.asdict() for table in self.tables]
        return {
            "title": self.title,
            "words": list(self.words),
            "tables": tables,
            "commands": list(self.commands),
        }

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{escape(line)}</p>" for line in self.words)
        tables = "".join(table._repr_html_() for table in self.tables)
        commands = escape("\n".join(self.commands))
        return f"<h3>{escape(self.title)}</h3>{words}{tables}" + (
            f"<pre>{commands}</pre>" if commands else ""
        )


def shown(cell: Cell) -> str:
    """A figure in four digits, or as many as its whole part has."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _html(cell: Cell) -> str:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return f'<data value="{cell!r}">{shown(cell)}</data>'
    return escape(shown(cell))
