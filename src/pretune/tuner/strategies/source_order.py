"""The best configurations of other platforms, in order: transfer without any model."""

from __future__ import annotations

import numpy as np
import polars as pl

from pretune.tuner.strategies.base import Strategy

# follow from the number of devices, which differs between platforms
DERIVED = {"knob.dp", "knob.accumulation"}
SOURCE = ["platform.name", "model.name", "workload.sequence_length", "workload.global_batch_tokens"]


class SourceOrderStrategy(Strategy):
    """Configurations by their mean relative throughput on the sources; those no source tried come last.

    A source is one workload on one platform of the history. Relative throughput is the
    share of the fastest trial there; a trial that failed counts 0. Ties, and the unseen,
    come in a shuffled order fixed by the seed.
    """

    def __init__(self, candidates: pl.DataFrame, history: pl.DataFrame, seed: int = 0) -> None:
        super().__init__(candidates, history, seed)
        shuffle = self.rng.permutation(len(candidates))
        score = mean_relative_throughput(candidates, history)
        self.order = shuffle[np.argsort(-score[shuffle], kind="stable")]

    def choose(self) -> int:
        return int(self.order[np.flatnonzero(self.open[self.order])[0]])


def chosen(candidates: pl.DataFrame) -> list[str]:
    """The columns of the knobs that make a configuration the same one on another platform."""
    return [name for name in candidates.columns if name.startswith("knob.") and name not in DERIVED]


def mean_relative_throughput(candidates: pl.DataFrame, history: pl.DataFrame) -> np.ndarray:
    """(n,) between 0 and 1 over the sources that tried a candidate; -1 where none did."""
    knobs = chosen(candidates)
    missing = [name for name in knobs if name not in history.columns]
    if history.is_empty() or missing:
        return np.full(len(candidates), -1.0)
    speed = pl.col("tokens_per_s_per_device")
    relative = (
        history.with_columns(pl.when(pl.col("status") == "ok").then(speed).otherwise(0.0))
        .group_by([*SOURCE, *knobs])
        .agg(speed.mean())
        .with_columns((speed / speed.max().over(SOURCE)).fill_nan(0.0).alias("relative"))
        .group_by(knobs)
        .agg(pl.col("relative").mean())
    )
    wanted = candidates.select(pl.col(name).cast(relative.schema[name]) for name in knobs)
    joined = wanted.join(relative, on=knobs, how="left", nulls_equal=True, maintain_order="left")
    return joined["relative"].fill_null(-1.0).to_numpy()
