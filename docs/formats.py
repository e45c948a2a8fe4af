"""Writes the table of ``docs/import.md``: what each format of ``pretune import`` fills."""

from __future__ import annotations

import re
from pathlib import Path

from pretune.datasets.importers import FORMATS, importer

PAGE = Path(__file__).parent / "import.md"
BEGIN, END = "<!-- fills: docs/formats.py -->\n", "<!-- /fills -->"


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


def page() -> str:
    """The page with the table as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}{table()}{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
