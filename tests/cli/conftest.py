"""The recorded tables of the tuner's tests, for commands to run on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

_spec = spec_from_file_location("recorded_tables", Path(__file__).parents[1] / "tuner" / "conftest.py")
assert _spec
assert _spec.loader
_tables = module_from_spec(_spec)
sys.modules["recorded_tables"] = _tables
_spec.loader.exec_module(_tables)

history, recorded, target, write_job = _tables.history, _tables.recorded, _tables.target, _tables.write_job


@pytest.fixture
def pretune(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``pretune ARGUMENTS`` in an empty folder, without the environment's tracking server."""
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pretune.cli", *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )

    return run
