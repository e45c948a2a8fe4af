"""The metric against its definition, and what policies come to on tables that are known."""

import itertools
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hmean

from pretune.datasets import Accelerator, Knobs, Link, ModelSpec, PeakFlops, Platform, Trial, Workload
from pretune.datasets.stated import StatedWorkload
from pretune.datasets.trial import Status
from pretune.errors import InputError
from pretune.tuner.portability import portability
from pretune.tuner.portability.efficiency import bound, gradient_seconds, hardware_flops, peak
from pretune.tuner.portability.replay import Replays
from pretune.tuner.portability.scores import cascade, scores
from pretune.tuner.portability.table import problems

MODEL = ModelSpec(name="small", layers=4, hidden_size=256, heads=4, vocabulary=1024)
WORKLOAD = Workload(model=MODEL, sequence_length=128, global_batch_tokens=128 * 8, precision="bf16")


def platform(name, link=1e9, nodes=1):
    gpu = Accelerator(name="gpu", peak_flops_per_s=PeakFlops(bf16=1e12))
    return Platform(
        name=name,
        accelerator=gpu,
        devices_per_node=2,
        nodes=nodes,
        intra_node=Link(bandwidth_bytes_per_s=link),
    )


def trial(where, speed, number, **knobs):
    status = "ok" if speed else "oom"
    return Trial(
        trial_id=f"{where.name}-{number}",
        purpose="history",
        workload=WORKLOAD,
        platform=where,
        knobs=Knobs(dp=where.devices, accumulation=1, **knobs),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        status=status,
        cause=None if speed else "out of memory",
        tokens_per_s_per_device=speed or None,
        tokens_per_s=speed * where.devices or None,
        tokens_per_s_std_error=speed * where.devices * 0.02 or None,
    )


A, B = platform("a"), platform("b", link=1e7)
TRIALS = [
    trial(A, 100.0, 0, micro_batch=1),
    trial(A, 50.0, 1, micro_batch=2),
    trial(A, 80.0, 2, micro_batch=4),
    trial(B, 0.0, 0, micro_batch=1),
    trial(B, 20.0, 1, micro_batch=2),
    trial(B, 16.0, 2, micro_batch=4),
]


def judged(trials=TRIALS, **options):
    (found,) = portability(trials, **{"budget": 0} | options)
    return {outcome.policy: outcome for outcome in found.outcomes}


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_the_harmonic_mean_is_scipys_and_never_above_the_arithmetic(efficiencies):
    found = scores(efficiencies)
    assert math.isclose(found.harmonic, hmean(efficiencies))
    assert found.worst <= found.harmonic * (1 + 1e-9)
    assert found.harmonic <= found.arithmetic * (1 + 1e-9)
    without = scores([*efficiencies, 0.0])
    assert without.harmonic == without.worst == 0.0
    assert math.isclose(without.arithmetic, found.arithmetic)


@given(st.lists(st.just(0.0) | st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_a_cascade_falls_and_ends_at_the_metric(efficiencies):
    steps = cascade(efficiencies)
    assert math.isclose(steps[-1][1], scores(efficiencies).harmonic, abs_tol=1e-12)
    for (one, so_far), (other, then) in itertools.pairwise(steps):
        assert other <= one
        assert then <= so_far * (1 + 1e-9)


def test_what_runs_out_of_memory_is_unsupported_and_what_nobody_ran_is_unknown():
    found = judged()
    assert found["tuned on a"].efficiencies["application"] == [1.0, 0.0]
    assert found["tuned on a"].scores["application"].harmonic == 0.0
    assert found["tuned on b"].efficiencies["application"] == [0.5, 1.0]
    single = found["best single configuration"]
    assert single.efficiencies["application"] == [0.8, 0.8]
    assert math.isclose(single.scores["application"].harmonic, 0.8)
    low, high = single.scores["application"].interval
    assert low < 0.8 < high
    assert found["stock defaults"].scores["application"] is None  # DeepSpeed's own was not run
    assert found["tuned on each"].scores["application"].harmonic == 1.0


def test_a_trial_whose_host_was_taken_away_says_nothing():
    update = {"trial_id": "gone", "status": Status.INTERRUPTED, "cause": "preempted"}
    gone = trial(A, 0.0, 9, micro_batch=8).model_copy(update=update)
    assert judged([*TRIALS, gone]) == judged()


def test_other_efficiencies_tell_a_slow_network_from_bad_tuning():
    found = judged()["tuned on each"].efficiencies
    needed = MODEL.flops_per_token(128)
    assert math.isclose(found["architectural"][0], 100.0 * needed / 1e12)
    fast, slow = found["attainable"]
    assert slow > found["architectural"][1]  # the network allows no more than that
    assert math.isclose(slow, 20.0 / bound(WORKLOAD, B, Knobs()))
    assert math.isclose(fast, 100.0 / bound(WORKLOAD, A, Knobs()))
    assert gradient_seconds(WORKLOAD, B, Knobs()) == pytest.approx(MODEL.parameters * 2 / 1e7)


def test_a_node_sends_what_it_has_reduced_over_the_links_of_all_its_devices():
    links = {"intra_node": Link(bandwidth_bytes_per_s=1e12), "inter_node": Link(bandwidth_bytes_per_s=1e6)}
    nodes = A.model_copy(update={"nodes": 4, "devices_per_node": 2, **links})
    size = MODEL.parameters * 2
    assert gradient_seconds(WORKLOAD, nodes, Knobs()) == pytest.approx(2 * 3 / 4 * size / 2 / 1e6)
    assert gradient_seconds(WORKLOAD, nodes, Knobs(tp=2)) == pytest.approx(2 * 3 / 4 * size / 2 / 1e6)
    assert gradient_seconds(WORKLOAD, nodes, Knobs(tp=2, pp=4)) is None


def test_recomputation_counts_in_hardware_flops_alone():
    once = hardware_flops(WORKLOAD, Knobs())
    selective = hardware_flops(WORKLOAD, Knobs(activation_checkpointing="selective"))
    full = hardware_flops(WORKLOAD, Knobs(activation_checkpointing="full"))
    assert once == 1.0 < selective < full < 4 / 3


def test_ten_sizes_of_one_cluster_count_once():
    sizes = [platform(f"b{n}", link=1e7, nodes=n) for n in (1, 2, 4)]
    more = [trial(size, 10.0, n, micro_batch=1) for n, size in enumerate(sizes)]
    more.append(trial(sizes[1], 11.0, 9, micro_batch=2))
    (found,) = portability(TRIALS[:3] + more, budget=0)
    assert found.platforms == ["a", "b2"]
    (declared,) = portability(TRIALS[:3] + more, ["a", "b1", "b4"], budget=0)
    assert declared.platforms == ["a", "b1", "b4"]


def test_a_set_that_is_none_is_refused():
    with pytest.raises(InputError, match="known: a, b"):
        portability(TRIALS, ["a", "c"])
    with pytest.raises(InputError, match="two platforms"):
        portability(TRIALS[:3])


def partly_stated(where, told):
    """The same trial, of which the source states no head, no optimizer and no norm."""
    workload = told.workload.model_dump() | {"optimizer": None}
    workload["model"] |= {"heads": None, "norm": None, "positions": None}
    return told.model_copy(update={"workload": StatedWorkload(**workload), "platform": where})


def test_a_workload_of_which_little_is_stated_is_a_problem_with_unknown_efficiencies():
    told = [partly_stated(each.platform, each) for each in TRIALS]
    whole, found = judged(), judged(told)
    for policy, outcome in found.items():
        assert outcome.efficiencies["application"] == whole[policy].efficiencies["application"]
        assert set(outcome.efficiencies["architectural"]) <= {None}
        assert outcome.scores["architectural"] is None
        assert outcome.hfu == [None, None]
    nobody_knows = told[0].workload.model_copy(update={"precision": None})
    with pytest.raises(InputError, match="precision are stated"):
        portability([each.model_copy(update={"workload": nobody_knows}) for each in told])


def test_sixteen_and_eight_bits_have_the_peaks_of_their_width():
    gpu = Accelerator(name="gpu", peak_flops_per_s=PeakFlops(bf16=1e12, fp8=2e12))
    where = A.model_copy(update={"accelerator": gpu})
    for precision, flops in (("bf16", 1e12), ("fp8", 2e12), ("mxfp8", 2e12), ("nvfp4", None)):
        assert peak(WORKLOAD.model_copy(update={"precision": precision}), where) == flops


def test_only_what_exceeds_the_budget_is_replayed_and_its_cost_is_said_beforehand():
    said = []
    portability(TRIALS, budget=3, seeds=2, progress=lambda *told: said.append(told))
    assert said == []  # three configurations: all are tried
    portability(TRIALS, budget=2, seeds=1, progress=lambda *told: said.append(told))
    assert said[0] == (0, 2, None)
    assert [(done, of) for done, of, _ in said[1:]] == [(1, 2), (2, 2)]
    assert said[1][2] > said[-1][2] == 0.0


def test_other_sizes_of_a_kind_of_hardware_are_no_history_of_it():
    larger = platform("b4", link=1e7, nodes=4)
    more = [trial(larger, 10.0, 9, micro_batch=1), *TRIALS]
    (found,) = problems(more, ["a", "b"])
    history = Replays(more, 1, 1).history(found, 1)
    assert set(history["platform.name"]) == {"a"}


def test_pretunes_own_policy_is_replayed_from_what_was_recorded():
    found = judged(budget=3, seeds=2)["pretune, 3 trials"]
    assert found.efficiencies["application"] == [1.0, 1.0]
    assert judged(budget=1, seeds=2)["pretune, 1 trials"].scores["application"].harmonic <= 1.0
