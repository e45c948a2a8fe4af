"""The tutorials' blocks, run in order in an empty folder, as a reader would who types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ["bash", "-euo", "pipefail", "-c"]
PYTHON = [sys.executable, "-c"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param("offline", marks=pytest.mark.long),
        pytest.param("tune", marks=pytest.mark.long),
        pytest.param("track", marks=pytest.mark.long),
    ],
)
def test_a_tutorial_does_what_it_says(page, tmp_path):
    blocks = BLOCK.findall((TUTORIALS / f"{page}.md").read_text(encoding="utf-8"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    ran = 0
    for language, title, text in blocks:
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        elif language in ("sh", "python"):
            command = SHELL if language == "sh" else PYTHON
            done = subprocess.run(
                [*command, text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 4
