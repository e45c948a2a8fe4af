from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scipy import stats

from pretune.datasets import Knobs, TrialStore
from pretune.datasets.frameworks import framework
from pretune.tuner.verify import Comparison, Measured, compare, ratio, rounds


@pytest.fixture(scope="module")
def table(recorded):
    return {frozenset(t.knobs.settings().items()): t for t in TrialStore(recorded).trials()}


class Runs:
    """Answers from the table, and remembers what was run."""

    def __init__(self, table):
        self.table, self.names = table, []

    def __call__(self, suffix, _purpose, knobs):
        self.names.append(re.sub(r"^(v\d+)-[0-9a-f]{4}-", r"\1-", suffix))
        return self.table[frozenset(knobs.settings().items())]


@pytest.fixture
def compared(table, workload, target):
    def run(best, searched=(), pairs=3):
        resolved = {
            name: framework("deepspeed").resolve(workload, target, Knobs(**knobs))
            for name, knobs in {"best": best, "default": {"micro_batch": 1}}.items()
        }
        runs = Runs(table)
        found = compare(
            resolved["best"], resolved["default"], workload, target, "deepspeed", searched, pairs, runs
        )
        return found, runs.names

    return run


def test_rounds_are_rotated():
    assert list(rounds(["a", "b", "c"], 4)) == [
        (0, ["a", "b", "c"]),
        (1, ["b", "c", "a"]),
        (2, ["c", "a", "b"]),
        (3, ["a", "b", "c"]),
    ]


def test_the_careful_baseline_is_the_largest_micro_batch_that_runs(compared):
    found, names = compared({"micro_batch": 2, "reduce_bucket_size": 5_000_000})
    assert names[:2] == ["c8", "c4"]  # 8 runs out of memory on the target
    assert found.careful.knobs.micro_batch == 4
    assert [trial.status for trial in found.probes] == ["oom", "ok"]
    assert names[2:8] == [
        "v00-winner",
        "v00-default",
        "v00-careful",
        "v01-default",
        "v01-careful",
        "v01-winner",
    ]


def test_the_search_is_evidence_of_what_fits(compared, table):
    searched = [t for t in table.values() if t.knobs.reduce_bucket_size == 500_000_000]
    found, names = compared({"micro_batch": 2, "reduce_bucket_size": 5_000_000}, searched)
    assert found.careful.knobs.micro_batch == 4
    assert found.probes == []
    assert not [name for name in names if name.startswith("c")]


def test_one_configuration_in_two_roles_is_run_once_and_is_no_gain(compared):
    found, names = compared({"micro_batch": 1}, pairs=2)
    assert [name for name in names if name.startswith("v")] == [
        "v00-winner",
        "v00-careful",
        "v01-careful",
        "v01-winner",
    ]
    speedup = found.over_baselines(found.winner)
    assert speedup["default"].same
    assert speedup["default"].ratio == 1.0
    assert speedup["careful"].ratio < 1


def test_the_interval_is_that_of_a_t_test_on_log_ratios(table):
    ok = [t for t in table.values() if t.ok][:10]
    mine, theirs = Measured(ok[0].knobs, ok[:5]), Measured(ok[5].knobs, ok[5:])
    found = ratio(mine, theirs)
    logs = [
        math.log(a.tokens_per_s_per_device / b.tokens_per_s_per_device)
        for a, b in zip(ok[:5], ok[5:], strict=True)
    ]
    expected = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert found.pairs == 5
    assert math.log(found.ratio) == pytest.approx(np.mean(logs))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((expected.low, expected.high))


def test_a_baseline_that_measured_faster_is_recommended(table):
    fast, *_, slow = sorted((t for t in table.values() if t.ok), key=lambda t: -t.tokens_per_s_per_device)
    failed = next(t for t in table.values() if not t.ok)

    def times(*factors):
        speed = fast.tokens_per_s_per_device
        return [fast.model_copy(update={"tokens_per_s_per_device": speed * each}) for each in factors]

    steady, noisy = times(1.0, 1.01, 0.99), times(0.5, 1.5, 1.1)
    winner, default, careful = (Measured(t.knobs) for t in (fast, slow, failed))
    found = Comparison(winner, default, careful, [])
    for trials, others, best in (
        (times(0.8, 0.81, 0.79), (steady, times(0.5, 0.5, 0.5)), default),
        (times(0.8, 0.81, 0.79), (steady, times(1.1, 1.1, 1.1)), careful),
        (noisy, (steady, times(0.5, 0.5, 0.5)), default),
        (times(0.9, 1.2, 1.1), (steady, steady), winner),
        ([failed] * 3, (steady, [failed] * 3), default),
        ([failed] * 3, ([failed] * 3, [failed] * 3), winner),
    ):
        winner.trials, (default.trials, careful.trials) = trials, others
        assert found.recommended is best


def test_failed_trials_make_no_pair(table):
    ok = [t for t in table.values() if t.ok][:3]
    failed = next(t for t in table.values() if not t.ok)
    found = ratio(Measured(ok[0].knobs, ok), Measured(failed.knobs, [failed, ok[0], failed]))
    assert (found.pairs, found.low) == (1, None)
    nothing = ratio(Measured(ok[0].knobs, ok), Measured(failed.knobs, [failed] * 3))
    assert (nothing.ratio, nothing.pairs) == (None, 0)
    assert Measured(failed.knobs, [failed]).asdict()["tokens_per_s_per_device"] is None
