"""pretune as one method of the replay benchmark in the shared folder.

    PYTHONPATH=benchmarks python ../shared/bench/suite.py llm-bigger-model -- \\
        --methods random,source-order --add pretune=peer:PretunePeer

Needs the modules of ``shared/bench`` on the path, as bench.py has them. A table's knobs become
``knob.*`` columns; the columns that say how large a model and a cluster are become the store's, so
that the physics can be computed; a table without them is tuned without physics.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl
from base import Peer  # type: ignore[import-not-found]
from table import Table, Task  # type: ignore[import-not-found]

from pretune.model import NoPhysics, TransferSurrogate, TransformerPhysics
from pretune.tuner.strategies.transfer import next_row

KNOBS = {"attention_impl": "attention"}
SHAPE = {
    "n_layers": "model.layers",
    "hidden_size": "model.hidden_size",
    "n_heads": "model.heads",
    "ffn_hidden_size": "model.ffn_size",
    "vocab_size": "model.vocabulary",
    "seq_len": "workload.sequence_length",
    "dp": "knob.dp",
}
GATED = "llama|qwen|mi[sx]tral|deepseek"
NEAR = 0.03  # of the number of parameters: published counts are rounded
FAILED = "crash"  # the tables do not say why a trial failed


class PretunePeer(Peer):  # type: ignore[misc]
    """The transfer strategy's own surrogate and choice."""

    needs_sources = True

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self.target = stated(task.target)
        sources = [measured(stated(table), -table.loss) for table in task.sources]
        self.history = pl.concat(sources, how="diagonal_relaxed") if sources else self.target.clear()
        shaped = "model.hidden_size" in self.target.columns
        baseline = TransformerPhysics() if shaped else NoPhysics()
        self.surrogate = TransferSurrogate(task.target.name, baseline, seed)

    def propose(self) -> int:
        told = [np.nan if loss is None else -loss for loss in self.losses]
        own = measured(self.target[self.tried], np.array(told))
        trials = pl.concat([self.history, own], how="diagonal_relaxed")
        believed = self.surrogate.fit(trials).predict(self.target)
        return next_row(self.surrogate, self.target, believed, self.open, np.array(told))


def measured(rows: pl.DataFrame, log_throughput: np.ndarray) -> pl.DataFrame:
    """The rows as trials, with (n,) logs of throughput, NaN where the trial failed."""
    ok = np.isfinite(log_throughput)
    return rows.with_columns(
        pl.Series("status", np.where(ok, "ok", FAILED), dtype=pl.String),
        pl.Series("tokens_per_s_per_device", np.exp(log_throughput)).fill_nan(None),
    )


def stated(table: Table) -> pl.DataFrame:
    """What a table says of its rows before any trial, in the store's columns."""
    features = dict(zip(table.feature_names, np.asarray(table.features, dtype=np.float64).T, strict=True))
    columns: dict[str, pl.Series | np.ndarray] = {
        f"knob.{KNOBS.get(name, name)}": knob(table.frame[name].tolist()) for name in table.frame
    }
    if {"hidden_size", "n_layers", "seq_len"} <= features.keys():
        columns |= {store: features[name] for name, store in SHAPE.items() if name in features}
        columns |= cluster(features)
        columns |= gated(features, table.name)
    else:
        columns |= {f"knob.{name}": values for name, values in features.items()}
    frame = pl.DataFrame(columns).with_columns(pl.lit(table.name).alias("platform.name"))
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def knob(values: list[Any]) -> pl.Series:
    """A column of a table; its words for true, false and unknown become those of the store."""
    truth = {"true": True, "false": False, "unset": None}
    if set(values) <= truth.keys():
        return pl.Series([truth[value] for value in values], dtype=pl.Boolean)
    return pl.Series(values)


def cluster(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    devices = features["devices"]
    local = np.minimum(features["devices_per_node"], devices)
    return {
        "platform.devices_per_node": local,
        "platform.nodes": np.ceil(devices / local),
        "workload.global_batch_tokens": features["global_batch"] * features["seq_len"],
    }


def gated(features: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """(n,) whether the MLP has three matrices, (n,) whether one table serves input and output: whatever comes
    nearest to the number of parameters that is stated; the table's name decides where two come near."""
    hidden, ffn, layers = (features[each] for each in ("hidden_size", "ffn_hidden_size", "n_layers"))
    stated = features["params_b"] * 1e9
    kinds = [(matrices, tables) for matrices in (3, 2) for tables in (2, 1)]
    off = np.array(
        [
            np.abs(
                tables * features["vocab_size"] * hidden + layers * hidden * (4 * hidden + m * ffn) - stated
            )
            / stated
            for m, tables in kinds
        ]
    )
    usual = 3 if re.search(GATED, name.lower()) else 2
    unusual = np.array([m != usual for m, _ in kinds])[:, None]
    best = np.argmin(np.nan_to_num(off, nan=np.inf) + NEAR * unusual, axis=0)
    return {
        "model.gated_mlp": np.array([m == 3 for m, _ in kinds])[best],
        "model.tied_embeddings": np.array([tables == 1 for _, tables in kinds])[best],
    }
