"""``python -m pretune.collector.rank MODULE FOLDER``: one rank of a cold trial, ``MODULE.run(FOLDER)``."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pretune.collector.process import PARENT, be_first_to_go, die_with_parent


def leave_after(work: Callable[[], int]) -> NoReturn:
    """Exit with the code that ``work`` returns, 1 when it raises, from here and at once.

    Destructors of a broken process group may wait for ranks that are gone.
    """
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    die_with_parent(int(os.environ[PARENT]))
    be_first_to_go()
    module, folder = sys.argv[1:]
    leave_after(lambda: importlib.import_module(module).run(Path(folder)))


if __name__ == "__main__":
    main()
