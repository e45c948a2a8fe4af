from __future__ import annotations

import pytest

from pretune.datasets import Knobs, TrialStore
from pretune.datasets.frameworks import framework
from pretune.tuner.reasons import Point, pareto, reasons
from pretune.tuner.tuner import Tuner


@pytest.fixture(scope="module")
def searched(workload, target, space, history, recorded):
    """A tuner that was told the whole space but ZeRO-1, and its best."""
    outcomes = {frozenset(t.knobs.settings().items()): t for t in TrialStore(recorded).trials()}
    tuner = Tuner(space, workload, target, history)
    for knobs in tuner.candidates.knobs:
        if knobs.zero_stage != 1:
            tuner.tell(outcomes[frozenset(knobs.settings().items())])
    return tuner, tuner.best().knobs


def why(searched, space, knob):
    tuner, best = searched
    found = reasons(tuner, space, best, best)
    return next(each for each in found.why if each.knob == knob)


def test_what_changing_a_knob_alone_costs_is_predicted_and_measured(searched, space):
    _, best = searched
    found = why(searched, space, "micro_batch")
    assert found.value == best.micro_batch
    assert [other.value for other in found.alternatives] == [n for n in (1, 2, 4, 8) if n != best.micro_batch]
    for other in found.alternatives:
        if other.measured:
            assert other.measured < 1.02
            assert other.predicted == pytest.approx(other.measured, rel=0.1)


def test_a_value_that_failed_is_measured_as_nothing_and_unlikely_to_run(workload, target, space, searched):
    tuner, _ = searched
    stock = framework("deepspeed").resolve(workload, target, Knobs(micro_batch=4))
    default = framework("deepspeed").resolve(workload, target, Knobs(micro_batch=1))
    found = reasons(tuner, space, stock, default)
    micro = next(each for each in found.why if each.knob == "micro_batch")
    eight = next(other for other in micro.alternatives if other.value == 8)
    assert eight.measured == 0.0  # the largest micro batch fits only recomputed
    assert eight.chance_to_run < 0.5
    place, of = found.default_place
    assert 1 < place <= of == len(tuner.candidates)


def test_what_was_not_tried_is_predicted_alone_and_what_is_not_read_does_not_hide_it(searched, space):
    """The best is ZeRO-0, which reads no bucket size: at ZeRO-1 either size is the same change."""
    _, best = searched
    assert best.zero_stage == 0
    found = why(searched, space, "zero_stage")
    assert [other.value for other in found.alternatives] == [1, 2, 3]
    one, two, three = (other.measured for other in found.alternatives)
    assert one is None
    assert two < 1
    assert three < 1
    assert all(other.predicted for other in found.alternatives)


def test_what_only_the_comparison_ran_is_measured_too(searched, space, recorded):
    """A baseline that won is no trial of the search."""
    tuner, best = searched
    other = best.model_copy(update={"zero_stage": 1})
    ran = [t for t in TrialStore(recorded).trials() if t.ok and t.knobs.settings() == other.settings()]
    assert ran
    found = next(each for each in reasons(tuner, space, other, best, ran).why if each.knob == "zero_stage")
    assert next(each.measured for each in found.alternatives if each.value == 0) > 1
    untold = next(each for each in reasons(tuner, space, other, best).why if each.knob == "zero_stage")
    assert all(each.measured is None for each in untold.alternatives)


def test_runners_up_are_other_configurations_in_order(searched, space):
    tuner, best = searched
    found = reasons(tuner, space, best, best).runners_up
    speeds = [point.tokens_per_s_per_device for point in found]
    assert speeds == sorted(speeds, reverse=True)
    assert len({str(point.knobs) for point in found}) == 4
    assert best.settings() not in [point.knobs for point in found]


def point(name, speed, headroom=None, joules=None):
    return Point(name, {}, speed, headroom, joules)


def test_the_pareto_front_is_what_nothing_beats_at_once():
    fast, roomy = point("fast", 100.0, 1e9, 3.0), point("roomy", 80.0, 5e9, 3.0)
    frugal, beaten = point("frugal", 70.0, 1e9, 1.0), point("beaten", 79.0, 4e9, 3.0)
    assert pareto([fast, roomy, frugal, beaten]) == [fast, roomy, frugal]
    unknown = point("unknown", 60.0, 9e9)  # energy is then not weighed at all
    assert pareto([fast, roomy, frugal, beaten, unknown]) == [fast, roomy, unknown]
    assert pareto([point("a", 2.0), point("b", 1.0)]) == [point("a", 2.0)]
    assert pareto([]) == []


def test_a_configuration_s_repeats_count_by_their_mean(searched, space):
    tuner, best = searched
    once = next(trial for trial in tuner.trials if trial.ok and trial.knobs == best)
    speed = once.tokens_per_s_per_device
    flattered = {"trial_id": "f" * 32, "tokens_per_s_per_device": 3 * speed}
    lucky = once.model_copy(update=flattered)
    found = reasons(tuner, space, best, best, [lucky])
    speeds = {point.trial_id: point.tokens_per_s_per_device for point in found.pareto + found.runners_up}
    assert speeds[once.trial_id] == pytest.approx(2 * speed)
