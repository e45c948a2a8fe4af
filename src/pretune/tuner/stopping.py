"""When a trial that runs need not go on: it will not be the best, by its own windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

from pretune.collector.meter import LEAST_WINDOWS
from pretune.collector.windows import relative_std_error

BETWEEN_RUNS = 0.03  # relative standard deviation of one configuration's throughput from start to start


def chance_to_beat(best_step_s: float, window_times_s: Sequence[float]) -> float:
    """That a trial with these windows has, in the end, a shorter mean step than ``best_step_s``; 1 while
    there are fewer than :data:`LEAST_WINDOWS`.

    Student's t on the difference, whose error is that of the mean window and, for either trial,
    what two runs of one configuration differ by.
    """
    error = relative_std_error(window_times_s) if len(window_times_s) >= LEAST_WINDOWS else None
    if error is None:
        return 1.0
    mean_s = sum(window_times_s) / len(window_times_s)
    spread = math.hypot(error, BETWEEN_RUNS * math.sqrt(2)) * mean_s
    return float(stats.t.cdf((best_step_s - mean_s) / spread, len(window_times_s) - 1))
