"""Lets the tests of schedulers share ``two_nodes`` and ``slurm_cluster``, on the nodes too."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent), prepend=os.pathsep)
