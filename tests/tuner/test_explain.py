"""What knobs are worth, on trials whose effects are known."""

import itertools
import math
from datetime import UTC, datetime

import numpy as np
import pytest

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, Trial, Workload
from pretune.errors import InputError
from pretune.tuner.explain import explain
from pretune.tuner.portability.table import Problem

HERE = Platform(name="here", accelerator=Accelerator(name="gpu"), devices_per_node=2)
WORKLOAD = Workload(
    model=ModelSpec(name="small", layers=4, hidden_size=256, heads=4, vocabulary=1024),
    sequence_length=128,
    global_batch_tokens=128 * 32,
)


def trials(speed, noise=0.0, **values):
    rng = np.random.default_rng(0)
    found = []
    for number, chosen in enumerate(itertools.product(*values.values())):
        knobs = dict(zip(values, chosen, strict=True))
        rate = speed(**knobs) * math.exp(noise * rng.standard_normal())
        found.append(
            Trial(
                trial_id=f"t{number}",
                purpose="history",
                workload=WORKLOAD,
                platform=HERE,
                framework="own",
                knobs=Knobs(**knobs),
                created_at=datetime(2026, 1, 1, tzinfo=UTC),
                status="ok" if rate else "oom",
                cause=None if rate else "out of memory",
                tokens_per_s_per_device=rate or None,
            )
        )
    return found


def effects(speed, noise=0.0, **values):
    (found,) = explain(trials(speed, noise, **values))
    return {(each.knob, each.value): each for each in found.effects}


def test_an_effect_is_found_with_an_interval_and_a_knob_without_one_is_not():
    found = effects(
        lambda a, b, **_: 100.0 * (1.5 if a == 2 else 1.0) * (0.9 if b else 1.0),
        noise=0.02,
        a=[1, 2],
        b=[False, True],
        c=[1, 2, 3],
    )
    assert found["a", 2].pairs == 6
    assert found["a", 2].low < 1.5 < found["a", 2].high
    assert found["a", 2].matters
    assert found["b", True].low < 0.9 < found["b", True].high
    assert not any(found["c", value].matters for value in (2, 3))
    assert found["a", 2].depends_on is None


def test_an_interaction_is_named_with_its_values():
    found = effects(
        lambda a, b, **_: 100.0 * (2.0 if a == 2 and b == 2 else 1.0),
        noise=0.01,
        a=[1, 2],
        b=[1, 2],
        c=[1, 2, 3],
    )
    assert found["a", 2].depends_on == "b"
    assert found["a", 2].ratios_by["2"] == pytest.approx(2.0, rel=0.1)
    assert found["a", 2].ratios_by["1"] == pytest.approx(1.0, rel=0.1)


def test_what_fails_is_counted_and_no_ratio():
    found = effects(lambda a, b: 0.0 if a == 2 and b > 1 else 10.0, a=[1, 2], b=[1, 2, 3])
    assert (found["a", 2].pairs, found["a", 2].breaks, found["a", 2].mends) == (1, 2, 0)
    assert found["a", 2].ratio is None


def test_too_few_pairs_tell_nothing():
    found = effects(lambda a, **_: 10.0 * a, a=[1, 2], b=[1, 2])
    assert found["a", 2].pairs == 2
    assert found["a", 2].ratio is None


def test_a_knob_that_is_switched_off_or_unset_is_shown_as_such(monkeypatch):
    told = trials(lambda a, b: 10.0 + 5 * (not a) + 3 * (b == 2), a=[True, False], b=[1, 2])
    extra = trials(lambda b: 20.0 * b, b=[1])[0].model_copy(update={"trial_id": "unset"})
    stock = told[0].knobs
    monkeypatch.setattr(Problem, "default", lambda self, _: self.row(stock))
    (found,) = explain([*told, extra])
    assert found.alone == [("a", None, 2.0), ("a", False, 1.5), ("b", 2, 1.3)]
    assert found.best == {}


def test_a_platform_without_trials_is_refused():
    with pytest.raises(InputError, match="known: here"):
        explain(trials(lambda a: 1.0 * a, a=[1, 2]), "there")


def test_the_shipped_history_tells_what_the_defaults_cost_and_what_is_only_predicted():
    from pretune.datasets.store import shipped_history

    found = explain(shipped_history().trials(), "cpu-capped")
    assert {each.problem.split("-")[0] for each in found} == {"gpt", "llama"}
    gpt = next(each for each in found if each.problem.startswith("gpt"))
    assert gpt.default_share < 0.9
    assert gpt.alone[0][:2] == ("micro_batch", 4)
    measured = {(each.knob, each.value) for each in gpt.effects if each.ratio is not None}
    predicted = {(each.knob, each.value) for each in gpt.predicted}
    assert measured
    assert predicted
    assert not measured & predicted
    assert all(each.low <= each.ratio <= each.high for each in gpt.effects if each.ratio is not None)
