"""A space that is too large to enumerate: a random sample, refined about what physics calls fastest."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from pretune.datasets.platform import Platform
from pretune.datasets.workload import Workload
from pretune.model.base import Array
from pretune.model.physics import TransformerPhysics
from pretune.tuner.space import Candidates, Space

SAMPLE = 100_000  # combinations drawn at first
FASTEST = 200  # about which it is refined
ROUNDS = 8  # at most; it ends when nothing faster is found
NOT_SEEN = "not looked at: the space is too large to enumerate, and was sampled and refined"


def sampled(space: Space, workload: Workload, platform: Platform, framework: str, where: str) -> Candidates:
    """Legal configurations of ``space``: some drawn at random, and all that differ in one knob from the
    fastest, round by round.

    Fastest by :class:`~pretune.model.physics.TransformerPhysics` among those that it finds room for: what
    history says comes later, of the candidates. The same space gives the same candidates. What was not looked
    at is counted among the dropped. Raises :class:`InputError` as :meth:`Space.candidates` does.
    """
    rng = np.random.default_rng(0)
    values = {name: pl.Series(name, each, strict=False) for name, each in space.knobs.items()}
    drawn = {name: each[rng.integers(0, len(each), SAMPLE)] for name, each in values.items()}
    looked_at = pl.DataFrame(list(drawn.values())).unique(maintain_order=True)
    found, best = _legal(space, looked_at, workload, platform, framework, where), -np.inf
    for _ in range(ROUNDS):
        score = _score(found.frame)
        order = np.argsort(-score, kind="stable")[:FASTEST]
        if not score[order[0]] > best:
            break
        best = score[order[0]]
        more = pl.concat([looked_at, _neighbours(found.frame[order], values)]).unique(maintain_order=True)
        if len(more) == len(looked_at):
            break
        looked_at = more
        found = _legal(space, looked_at, workload, platform, framework, where)
    left = space.count - len(looked_at)
    return Candidates(workload, platform, framework, found.knobs, {**found.dropped, NOT_SEEN: left})


def _legal(
    space: Space, grid: pl.DataFrame, workload: Workload, platform: Platform, framework: str, where: str
) -> Candidates:
    kept: tuple[pl.DataFrame, Counter[str]] = space.constrained(grid, where)
    return space.legal(kept, workload, platform, framework, where)


def _score(frame: pl.DataFrame) -> Array:
    """(n,) log throughput by physics; what needs more memory than there is comes after all that fits."""
    physics = TransformerPhysics()
    over = np.log(physics.memory_bytes(frame)) - np.log(
        frame["accelerator.memory_bytes"].cast(pl.Float64).fill_null(np.inf).to_numpy()
    )
    return np.asarray(np.nan_to_num(physics.log_throughput(frame)) - 1e3 * np.maximum(over, 0.0))


def _neighbours(frame: pl.DataFrame, values: dict[str, pl.Series]) -> pl.DataFrame:
    """Every combination of the space that differs in one knob from one of some candidates."""
    known = {name: pl.col(f"knob.{name}").is_in(each.implode()) for name, each in values.items()}
    # a knob that is not read there has its default, which the space need not have
    fastest = frame.select(
        pl.when(known[name])
        .then(pl.col(f"knob.{name}"))
        .otherwise(pl.lit(each[0]))
        .cast(each.dtype)
        .alias(name)
        for name, each in values.items()
    )
    parts = [
        fastest.drop(name).join(each.to_frame(), how="cross").select(fastest.columns)
        for name, each in values.items()
        if len(each) > 1
    ]
    return pl.concat([part.cast(fastest.schema) for part in parts]).unique(maintain_order=True)
