"""What Megatron-LM's ``validate_args`` and ``TransformerConfig`` ask of a layout (core 0.16 to 0.20)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pretune.datasets.frameworks.base import Problem
from pretune.datasets.stated import nearest_divisors
from pretune.datasets.workload import ModelSpec


def layout_rules(
    told: Mapping[str, Any], sequence_length: int | None, model: ModelSpec | None
) -> list[Problem]:
    """What is refused of a layout whose degrees and batch are legal by themselves.

    ``told``: dp, tp, pp, vp, cp, ep and accumulation; of the other knobs those that are known. What is
    unknown is not judged.
    """
    return _pipeline(told) + _sequence(told, sequence_length, model) + _experts(told, model)


def multiples(number: int, unit: int) -> tuple[int, ...]:
    """The multiples of ``unit`` on both sides of ``number``, without 0."""
    below = number // unit * unit
    return tuple(each for each in (below, below + unit) if each)


def _pipeline(told: Mapping[str, Any]) -> list[Problem]:
    if told["vp"] == 1:
        return []
    found, pp, micro_batches = [], told["pp"], told["accumulation"]
    if micro_batches % pp:
        reason = f"interleaving takes micro batches in multiples of the {pp} stages, not {micro_batches}"
        found.append(Problem("accumulation", reason, multiples(micro_batches, pp)))
    if pp == 2 and not told.get("overlap_p2p_comm", True):
        reason = "two interleaved stages must overlap what they send each other"
        found.append(Problem("overlap_p2p_comm", reason, (True,)))
    return found


def _sequence(told: Mapping[str, Any], length: int | None, model: ModelSpec | None) -> list[Problem]:
    tp, cp, split = told["tp"], told["cp"], told.get("sequence_parallel")
    found = []
    if told.get("tp_comm_overlap") and not (split and tp > 1):
        found.append(Problem("tp_comm_overlap", "needs sequence_parallel and tp above 1", (False,)))
    pieces = math.lcm(2 * cp if cp > 1 else 1, tp * cp if split else 1)
    if length and length % pieces:
        degree = "cp" if length % (2 * cp) else "sequence_parallel"
        whole = " or ".join(map(str, multiples(length, pieces)))
        reason = f"a sequence of {length} does not split into {pieces} pieces (as {whole} would)"
        found.append(Problem(degree, reason))
    if model and told.get("cp_comm_type") == "a2a" and (heads := model.kv_heads // tp) % cp:
        reason = f"a2a gives each of {cp} ranks whole heads, but there are {heads} of keys and values"
        found.append(Problem("cp_comm_type", reason, ("p2p", "all_gather")))
    return found


def _experts(told: Mapping[str, Any], model: ModelSpec | None) -> list[Problem]:
    """Experts are split over a stage's ranks, in groups of their own tensor degree (parallel_state.py)."""
    if model and not model.experts:
        dense = "the model has no experts"
        return [Problem("moe_grouped_gemm", dense, (False,))] if told.get("moe_grouped_gemm") else []
    found, ep, own = [], told["ep"], told.get("expert_tp") or told["tp"]
    ranks = told["tp"] * told["cp"] * told["dp"]
    if (ep > 1 or model) and ranks % (own * ep):
        near = nearest_divisors(ranks // own, ep) if ranks % own == 0 else ()
        reason = f"{ep} x {own} ranks that share an expert's tensors do not divide the {ranks} of a stage"
        found.append(Problem("ep", reason, tuple(near)))
    if told["tp"] > 1 and ep > 1 and not told.get("sequence_parallel"):
        found.append(Problem("sequence_parallel", "is needed by experts under tensor parallelism", (True,)))
    return found
