"""Writes what each format of ``pretune import`` fills: the tables of ``docs/import.md`` and of the README."""

from __future__ import annotations

import re
from pathlib import Path

from pretune.datasets.importers import FORMATS, importer

PAGE = Path(__file__).parent / "import.md"
README = PAGE.parents[1] / "README.md"
BEGIN, END = "<!-- fills: docs/formats.py -->\n", "<!-- /fills -->"
# heading of the README's table -> the columns of the store, any of which make the mark
KINDS = {
    "shape": r"model\.(layers|hidden_size)",
    "layout": r"knob\.(dp|tp|pp|zero_stage)",
    "speed": r"step_time_s|tokens_per_s.*",
    "memory": r"peak_memory_.*",
    "loss": r"loss_.*",
    "counters": r"counter\..*",
}


def table() -> str:
    """Markdown: a row for each format, its columns of the store by what they describe."""
    rows = ["| format | model | workload | platform | knobs | measured and other |", "|---" * 6 + "|"]
    for name in sorted(FORMATS):
        kinds: dict[str, list[str]] = {}
        for column in sorted(set(importer(name).fills)):
            prefix, _, field = column.rpartition(".")
            if prefix == "accelerator":
                kinds.setdefault("platform", []).append(column)
            elif prefix in ("model", "workload", "platform", "knob"):
                kinds.setdefault(prefix, []).append(field)
            else:
                kinds.setdefault("", []).append(column)
        cells = [", ".join(kinds.get(kind, [])) for kind in ("model", "workload", "platform", "knob", "")]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def summary() -> str:
    """Markdown: a row for each format, what it reads, and a mark for each kind of column that it fills."""
    rows = [f"| format | reads | {' | '.join(KINDS)} |", "| --- | --- |" + " :-: |" * len(KINDS)]
    for name in sorted(FORMATS):
        kind = importer(name)
        anything = "mapped" if kind.fills[0].startswith("whatever") else ""
        marks = [
            "✓" if any(re.fullmatch(columns, each) for each in kind.fills) else anything
            for columns in KINDS.values()
        ]
        rows.append(f"| `{name}` | {kind.reads} | {' | '.join(marks)} |")
    return "\n".join(rows) + "\n"


def pages() -> dict[Path, str]:
    """File -> its text with the table as it is now."""
    return {
        path: re.sub(
            f"{BEGIN}.*{END}",
            lambda _, made=made: f"{BEGIN}{made()}{END}",
            path.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        for path, made in {PAGE: table, README: summary}.items()
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
