"""How the tests of the store start processes that share their modules."""

import os
from pathlib import Path

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
}
