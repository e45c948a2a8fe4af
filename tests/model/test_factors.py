"""Factors of memory: found where they are, from peaks or from outcomes; the fuller pipeline stage counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import approx_fprime

from pretune.model import NoPhysics
from pretune.model.factors import Factors, Rows, _Problem
from pretune.model.physics import memory
from pretune.model.physics.setup import read_setup

KINDS = list(memory.KINDS)
CAPACITY = 80e9
MODEL: dict[str, Any] = {
    "model.layers": 32,
    "model.hidden_size": 4096,
    "model.heads": 32,
    "model.ffn_size": 14336,
    "model.vocabulary": 131_072,
    "model.gated_mlp": True,
    "workload.sequence_length": 4096,
    "workload.global_batch_tokens": 4096 * 256,
    "workload.precision": "bf16",
    "platform.devices_per_node": 8,
    "platform.nodes": 8,
    "knob.zero_stage": 0,
}


def setup(**knobs: Any) -> Any:
    named = {f"knob.{name}": value for name, value in knobs.items() if name != "framework"}
    framework = {"framework": knobs.get("framework", "megatron")}
    return read_setup(pl.DataFrame([{**MODEL, **framework, **named}]))


def trials(count: int, true: dict[str, float], seed: int = 0) -> Rows:
    """Bytes at random by kind on two stages; peaks and outcomes as the ``true`` factors have them."""
    rng = np.random.default_rng(seed)
    terms = np.zeros((count, 2, len(KINDS)))
    for kind in ("weights", "optimizer", "activations_split", "logits"):
        terms[:, :, KINDS.index(kind)] = np.exp(rng.uniform(np.log(2e9), np.log(4e10), (count, 2)))
    factor = np.array([true.get(kind, 1.0) for kind in KINDS])
    peak = (terms @ factor).max(axis=1)
    return Rows(
        seen=terms,
        needed=terms,
        kernel=np.full(count, "", dtype=object),
        peak=peak,
        capacity=np.full(count, CAPACITY),
        status=np.where(peak < CAPACITY, "ok", "oom").astype(object),
    )


def without(rows: Rows, **others: Any) -> Rows:
    return Rows(**{**vars(rows), **others})


def found(rows: Rows) -> dict[str, float]:
    return dict(zip(KINDS, np.exp(Factors().fitted(rows).log_factor), strict=True))


TRUE = {"activations_split": 1.8, "logits": 0.5}


def test_peaks_show_each_kinds_factor() -> None:
    rows = trials(200, TRUE)
    factors = found(without(rows, status=np.full(200, "invalid", dtype=object)))
    for kind in ("weights", "optimizer", "activations_split", "logits"):
        assert factors[kind] == pytest.approx(TRUE.get(kind, 1.0), rel=0.05)
    assert factors["checkpoints"] == pytest.approx(1.0)  # of which nothing was seen


@pytest.mark.parametrize("capacity", [CAPACITY, np.nan])
def test_outcomes_alone_tell_what_runs_out_of_memory(capacity: float) -> None:
    rows, new = trials(300, TRUE), trials(300, TRUE, seed=1)
    nothing = np.full(300, np.nan)
    told = without(rows, peak=nothing, capacity=np.full(300, capacity))
    factors = Factors().fitted(told)
    room = factors.capacity if np.isnan(capacity) else capacity
    assert np.isfinite(room)

    def right(believed: Factors, capacity: float) -> float:
        fits = believed.log_bytes(new.needed, new.kernel) < np.log(capacity)
        return float((fits == (new.status == "ok")).mean())

    assert right(factors, room) > 0.95
    assert right(factors, room) > right(Factors(), CAPACITY) + 0.05


def test_a_kernel_that_keeps_more_is_told_from_others() -> None:
    rows = trials(200, {})
    whole = KINDS.index("activations_whole")
    rows.needed[:, :, whole] = 2e10
    kernel = np.array(["plain", "lean"] * 100, dtype=object)
    factor = np.where(kernel == "lean", 0.4, 1.0)
    peak = (rows.needed.sum(axis=2) + (factor[:, None] - 1) * 2e10).max(axis=1)
    refused = np.full(200, "invalid", dtype=object)
    factors = Factors().fitted(without(rows, kernel=kernel, peak=peak, status=refused))
    assert factors.kernels["lean"] - factors.kernels["plain"] == pytest.approx(np.log(0.4), abs=0.1)


def test_without_failures_or_peaks_nothing_is_learned() -> None:
    rows = trials(20, TRUE)
    rows = without(rows, peak=np.full(20, np.nan), status=np.full(20, "ok", dtype=object))
    assert Factors().fitted(rows).log_factor.tolist() == Factors().log_factor.tolist()
    unknown = np.full((20, 1, len(KINDS)), np.nan)
    assert found(without(rows, seen=unknown, needed=unknown))["weights"] == 1.0
    assert np.isnan(NoPhysics().memory_terms(pl.DataFrame({"a": [1]}))).all()


def test_trusted_factors_move_less() -> None:
    rows = trials(3, TRUE)
    free, trusted = Factors().fitted(rows), Factors().fitted(rows, trust=0.9)
    assert (
        np.abs(trusted.log_factor - Factors().log_factor).sum()
        < np.abs(free.log_factor - Factors().log_factor).sum()
    )


def test_the_slope_is_that_of_the_loss() -> None:
    rows = trials(40, TRUE)
    status = rows.status.copy()
    status[::5] = "crash"
    capacity = np.where(np.arange(40) % 2 == 0, np.nan, CAPACITY)
    rows = without(rows, status=status, capacity=capacity, kernel=np.array(["a", ""] * 20, dtype=object))
    problem = _Problem(rows, Factors(), 1.0)
    at = problem.start + np.random.default_rng(0).normal(0, 0.2, len(problem.start))
    slope = approx_fprime(at, lambda point: problem.loss(point)[0], 1e-6)
    assert problem.loss(at)[1] == pytest.approx(slope, rel=1e-3, abs=1e-2)


def test_factors_are_kept() -> None:
    rows = without(trials(50, TRUE), capacity=np.full(50, np.nan))
    factors = Factors().fitted(rows)
    assert Factors.restore(factors.state()).state() == factors.state()
    assert Factors.restore(Factors().state()).state() == Factors().state()


def test_the_first_stage_holds_more_batches_and_the_last_one_the_logits() -> None:
    terms = dict(zip(KINDS, memory.terms(setup(tp=2, pp=4, micro_batch=1))[0].T, strict=True))
    assert terms["activations_split"][0] == pytest.approx(4 * terms["activations_split"][1])
    assert terms["logits"][0] == 0 < terms["logits"][1]
    # where logits outweigh the batches in flight, the last stage is the fullest
    few = setup(tp=1, pp=2, micro_batch=4, accumulation=1)
    first, last = (memory.terms(few)[0]).sum(axis=1)
    assert last > first


def test_nanotron_balances_the_output_layer_and_reports_the_first_stage() -> None:
    balanced = setup(pp=2, framework="nanotron")
    layers = [each[0] for each in memory.stage_layers(balanced)]
    assert layers == [18, 14]  # the output projection weighs as much as 2.2 layers
    assert [each[0] for each in memory.stage_layers(setup(pp=2))] == [16, 16]
    own = memory.reported(balanced, memory.terms(balanced))[0]
    assert own[0].tolist() == own[1].tolist() == memory.terms(balanced)[0, 0].tolist()


def test_gradients_that_add_up_in_fp32_and_gathered_logits_are_by_framework() -> None:
    megatron, other = (
        dict(zip(KINDS, memory.terms(setup(tp=4, framework=name))[0, 0], strict=True))
        for name in ("megatron", "another")
    )
    assert megatron["weights"] / other["weights"] == pytest.approx(6 / 4)
    assert megatron["logits_if_gathered"] == 0
    assert other["logits_if_gathered"] == pytest.approx(4 * other["logits"])
