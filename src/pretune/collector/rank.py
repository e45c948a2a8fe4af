"""``python -m pretune.collector.rank MODULE FOLDER``: one rank of a cold trial, ``MODULE.run(FOLDER)``."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from pretune.collector.process import PARENT, be_first_to_go, die_with_parent


def main() -> None:
    """Never returns: destructors of a broken process group may wait for ranks that are gone."""
    die_with_parent(int(os.environ[PARENT]))
    be_first_to_go()
    module, folder = sys.argv[1:]
    code = 1
    try:
        code = int(importlib.import_module(module).run(Path(folder)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
