"""The pipeline: how much longer the last micro batch takes to leave it than the first to enter."""

from __future__ import annotations

from pretune.model.base import Array
from pretune.model.physics.setup import Setup


def bubble_fraction(pp: Array, vp: Array, micro_batches: Array) -> Array:
    """Idle time over ideal time of 1F1B, (p - 1) / (v m), interleaved over v virtual stages.

    Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2.
    """
    return (pp - 1) / (vp * micro_batches)


def pipeline_s(setup: Setup, stage_s: Array) -> Array:
    """(n,) seconds for all micro batches of a step, given those of one on the slowest stage."""
    bubble = bubble_fraction(setup.pp, setup.vp, setup.accumulation)
    return setup.accumulation * stage_s * (1 + bubble)
