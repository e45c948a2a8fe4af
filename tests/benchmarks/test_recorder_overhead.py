"""The overhead benchmark really records, and recording costs little even on a busy machine."""

from pathlib import Path

import pytest
import recorder_overhead

from pretune.datasets import Status, TrialStore


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_recording_a_training_step_costs_next_to_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    loop = recorder_overhead.Plain(recorder_overhead.llama(), 8, tmp_path / "trials")
    found = recorder_overhead.rounds(loop, 3, print)
    trials = list(TrialStore(loop.store).trials())
    assert [trial.status for trial in trials] == [Status.OK] * 4  # and the round before, of imports
    assert all(len(trial.window_times_s) >= recorder_overhead.STEPS - 8 for trial in trials)
    assert all(blocks["bare"].inside_s == 0.0 < blocks["recorded"].inside_s for blocks in found)
    figures = recorder_overhead.summary(found)
    assert figures["inside"] < 0.02  # the limit is 0.005, on a machine with nothing else to do
    assert len(figures["raw_us"]["wall_s"]) == figures["rounds"] == 3


def test_a_ratio_is_the_median_over_the_rounds_with_its_interval():
    block = recorder_overhead.Block
    found = [
        {
            "bare": block(1.0, 1.0, 1.0, 0.0, 1.0, 0.0),
            "recorded": block(1.0 + n / 100, 1.0, 1.0, 0.0, 1.0, 0.0),
        }
        for n in range(9)
    ]
    wall = recorder_overhead.ratio(found, "recorded", "wall_s")
    assert wall["median"] == pytest.approx(1.04)
    assert wall["low"] < 1.04 < wall["high"]
    assert recorder_overhead.ratio(found, "recorded", "cpu_s") == {"median": 1.0, "low": 1.0, "high": 1.0}
