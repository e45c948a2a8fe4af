"""A campaign fills the space evenly, in random order, with controls; and goes on where it was."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml

from pretune.datasets import TrialStore
from pretune.errors import InputError
from pretune.mlflow_config import NoTracker
from pretune.tuner.campaign import Campaign, drift, spread_over
from pretune.tuner.job import JobSpec


@pytest.fixture
def job(write_job):
    return JobSpec.from_yaml(write_job())


@pytest.fixture
def candidates(job):
    return job.candidates(job.platform)


def test_every_value_comes_as_often_as_the_others_even_where_constraints_bind_it(write_job):
    space = {
        "zero_stage": [0, 1, 2, 3],
        "micro_batch": [1, 2, 4, 8],
        "reduce_bucket_size": [50_000, 5_000_000],
    }
    job = JobSpec.from_yaml(
        write_job(space=space, constraints=["zero_stage > 0 OR reduce_bucket_size = 5000000"])
    )
    candidates = job.candidates(job.platform)
    chosen = [candidates.knobs[row] for row in spread_over(candidates, 16, seed=0)]
    assert Counter(knobs.zero_stage for knobs in chosen)[0] >= 3  # of 28 rows it has 4
    assert set(Counter(knobs.micro_batch for knobs in chosen)) == {1, 2, 4, 8}


def test_rows_differ_and_fewer_are_the_beginning_of_more(candidates):
    more = spread_over(candidates, 20, seed=1)
    assert len(set(more)) == 20
    assert spread_over(candidates, 12, seed=1) == more[:12]
    assert spread_over(candidates, 20, seed=2) != more


def test_the_whole_space_is_its_own_spread_and_no_more_can_be_asked(candidates):
    assert sorted(spread_over(candidates, len(candidates), seed=0)) == list(range(len(candidates)))
    with pytest.raises(InputError, match="configurations"):
        spread_over(candidates, len(candidates) + 1, seed=0)


def test_controls_come_first_last_and_in_between(job, tmp_path):
    answer = Campaign(job, tmp_path / "out", 9, NoTracker(), control_every=4).run()
    trials = sorted(TrialStore(answer.store).trials(), key=lambda t: t.trial_id)
    assert Counter(t.purpose for t in trials) == {"history": 9, "control": 4}
    assert sum(answer.statuses.values()) == 13
    assert answer.drift.controls == 4
    assert answer.drift.spread < 0.02  # a replayed table does not drift
    assert len({yaml.safe_dump(t.knobs.settings()) for t in trials if t.purpose == "history"}) == 9


def test_with_more_trials_it_goes_on_and_repeats_none(job, tmp_path):
    first = Campaign(job, tmp_path / "out", 6, NoTracker(), control_every=100).run()
    before = {t.trial_id for t in TrialStore(first.store).trials()}
    more = Campaign(job, tmp_path / "out", 10, NoTracker(), control_every=100).run()
    trials = list(TrialStore(more.store).trials())
    assert before < {t.trial_id for t in trials}
    assert len(trials) == 10 + 2


def test_a_platform_that_slows_down_shows_as_drift(job, tmp_path):
    answer = Campaign(job, tmp_path / "out", 8, NoTracker(), control_every=2).run()
    trials = sorted(TrialStore(answer.store).trials(), key=lambda t: t.created_at)
    controls = [t for t in trials if t.purpose == "control"]
    slowed = [
        t.model_copy(update={"tokens_per_s": t.tokens_per_s * 0.95**number})
        for number, t in enumerate(controls)
    ]
    assert drift(slowed).trend < 0.9
    assert drift(slowed).spread > 0.05
    assert drift(controls[:2]).trend is None
