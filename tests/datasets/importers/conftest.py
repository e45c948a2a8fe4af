"""Golden logs, and what an importer makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pretune.datasets.importers.base import Importer, Run, SetAside

GOLDEN = Path(__file__).parent / "golden"
Outcome = tuple[list[Run], list[SetAside]]


def outcome(importer: Importer, path: Path) -> Outcome:
    read = list(importer.read(path))
    return [r for r in read if isinstance(r, Run)], [r for r in read if isinstance(r, SetAside)]


@pytest.fixture
def imported() -> Callable[[Importer, str], Outcome]:
    """The runs and what was set aside of a golden file."""
    return lambda importer, name: outcome(importer, GOLDEN / name)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Importer, str], Outcome]:
    """The same of a text."""

    def read(importer: Importer, text: str) -> Outcome:
        (tmp_path / "some.log").write_text(text)
        return outcome(importer, tmp_path / "some.log")

    return read


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden files."""
    return GOLDEN
