"""A file that was cut off, or is still being written: of every format no row that the whole one has not.

Of logs, whose runs grow with every line, ``test_logs`` says what may differ.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from pretune.datasets.importers import FORMATS, importer
from pretune.datasets.importers.base import Run, SetAside
from pretune.errors import InputError

GOLDEN = Path(__file__).parent / "golden"
LOGS = {"deepspeed", "megatron", "megatron-bridge", "mlperf", "nemo", "torchtitan"}  # see test_logs
OTHERS = sorted({path.name for path in GOLDEN.iterdir()} - LOGS)
FILES = [
    pytest.param(name, path.relative_to(GOLDEN / name), id=f"{name}-{path.name}")
    for name in OTHERS
    for path in sorted((GOLDEN / name).rglob("*"))
    if path.is_file()
]
GROWS = {"history.csv"}  # one run of many lines; its speed and its last loss are those so far


def runs(name: str, folder: Path, file: Path) -> dict[str, Run]:
    """The runs of a file and of those that others beside it belong to, by their keys."""
    kind, found = importer(name), list[Run | SetAside]()
    for path in {file, *folder.rglob(kind.pattern)}:
        with contextlib.suppress(InputError):  # cut within its header, or no file of its own
            found += kind().read(path)
    return {run.key: run for run in found if isinstance(run, Run)}


def test_every_format_has_a_golden_file():
    assert {*OTHERS, *LOGS} == set(FORMATS) - {"mlflow"}  # made by MLflow itself, in its own tests


@pytest.mark.parametrize(("name", "file"), FILES)
@pytest.mark.parametrize("within", [0.0, 0.5], ids=["line", "half"])
def test_a_cut_file_has_no_row_that_the_whole_one_has_not(name, file, within, tmp_path):
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder)
    whole = runs(name, folder, folder / file)
    assert whole or "checkpoint" in str(file)
    lines, begun = (folder / file).read_bytes().splitlines(keepends=True), b""
    for line in lines:
        (folder / file).write_bytes(begun + line[: int(within * len(line))])
        for key, run in runs(name, folder, folder / file).items():
            stated = {column: value for column, value in run.values.items() if value is not None}
            if file.name not in GROWS:
                assert stated.items() <= whole[key].values.items()
            assert whole[key].values.get("status") == run.values.get("status")
        begun += line
