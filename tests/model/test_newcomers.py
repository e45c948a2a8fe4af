"""The process on newcomers' trials: a level is believed as far as levels were seen to differ."""

from __future__ import annotations

import numpy as np

from pretune.model.newcomers import SCALES, Newcomers, Rows


def rows(count: int, doubts: float = 0.0) -> Rows:
    """Of one newcomer, far apart."""
    points = 9.0 * np.arange(count)[:, None]
    return Rows(
        {"model": np.zeros(count, np.int64)}, np.zeros((count, 1)), np.full((count, 1), doubts), points
    )


def carried(measured: set[str], level: float, doubts: float = 0.0) -> float:
    """How much of one trial's residual is expected of the next, if levels differ by ``level`` of their sd."""
    told = np.where((SCALES[:, 0] == level) & (SCALES[:, 3] == 0.1), 0.0, -np.inf)
    both = rows(2, doubts)
    process = Newcomers({"model": 0.3}, measured, told).fit(both[np.array([0])], np.array([0.2]))
    return float(process.predict(both[np.array([1])])[0][0]) / 0.2


def test_a_level_is_believed_as_far_as_levels_were_seen_to_differ() -> None:
    assert carried({"model"}, 0.1) < 0.2 < 0.7 < carried({"model"}, 1.0)


def test_a_level_of_what_was_never_held_out_may_be_anything() -> None:
    assert carried(set(), 0.1) == carried({"model"}, 1.0) > 0.7


def test_what_the_history_left_open_of_the_physics_is_carried_over() -> None:
    assert carried({"model"}, 0.1, doubts=0.5) > 0.8
