"""Lets the tests, and the processes they start, share ``sample_trials``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
