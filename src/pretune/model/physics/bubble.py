"""The pipeline: how much longer the last micro batch takes to leave it than the first to enter."""

from __future__ import annotations

from pretune.model.base import Array


def bubble_fraction(pp: Array, vp: Array, micro_batches: Array) -> Array:
    """Idle time over ideal time of 1F1B, (p - 1) / (v m), interleaved over v virtual stages.

    Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2.
    """
    return (pp - 1) / (vp * micro_batches)
