"""``python -m pretune.collector.rank MODULE FOLDER``: one rank of a cold trial, ``MODULE.run(FOLDER)``."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from pretune.collector.process import die_with_parent


def main() -> int:
    die_with_parent(os.getppid())
    module, folder = sys.argv[1:]
    return int(importlib.import_module(module).run(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
