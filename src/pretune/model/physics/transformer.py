"""The physical baseline of transformer training: a step's time and memory from first principles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import polars as pl

from pretune.model.base import Array, Baseline
from pretune.model.columns import numbered, numbers, ran, rows, words
from pretune.model.physics import communication, memory
from pretune.model.physics.bubble import bubble_fraction
from pretune.model.physics.calibration import MAX_ROWS, calibrated
from pretune.model.physics.reading import Reading, reading
from pretune.model.physics.setup import Setup
from pretune.model.physics.step import MEAN, NAMES, SD

# What makes trials a stack: software and devices whose constants and ways of measuring are their own.
_STACK = ("source", "framework", "accelerator.name")
# a time is only a figure where what it rests on is known; elsewhere the feature stays null
_RESTS_ON = {
    "compute": ("peak_flops_per_s", "fingerprint.matmul"),
    "memory_traffic": ("accelerator.memory_bandwidth", "fingerprint.copy"),
    "communication": ("intra_node.bandwidth", "inter_node.bandwidth", "fingerprint.allreduce_busbw"),
}
# feature -> the constants whose shares of the step it adds up, and what it rests on besides compute
_SHARES = {
    "products": (("products",), None),
    "attention": (("attention", "score_traffic"), None),
    "memory_traffic": (
        ("operand_traffic", "activation_traffic", "loss_traffic", "gradient_accumulation"),
        "memory_traffic",
    ),
    "tensor_parallel": (("tensor_parallel_inside", "tensor_parallel_across"), "communication"),
    "data_parallel": (
        ("data_parallel_inside", "data_parallel_across", "data_parallel_messages"),
        "communication",
    ),
    "pipeline_parallel": (("pipeline_parallel",), "communication"),
    "optimizer": (("optimizer",), "memory_traffic"),
    "launch": (("kernels", "launch", "step_overhead"), None),
    "latency": (("latency",), None),
    "bubble": (("bubble",), None),
}


class TransformerPhysics(Baseline):
    """Compute, memory traffic, communication, bubble and optimizer of a decoder-only transformer.

    ``constants``: name -> natural log of what a part of the step (:mod:`pretune.model.physics.step`) takes
    over its nominal time; by default what is believed before any trial. Rows whose model shape
    or sequence length is unknown give NaN (features: null).
    """

    name: ClassVar[str] = "transformer"

    def __init__(self, constants: Mapping[str, float] | None = None, doubt: Array | None = None) -> None:
        """``doubt`` (c, c): by default what is thinkable of each constant.

        Raises :class:`ValueError` for a constant that does not exist.
        """
        self._constants = MEAN.copy()
        for name, value in (constants or {}).items():
            self._constants[NAMES.index(name)] = value
        self._doubt = np.diag(SD) if doubt is None else doubt

    @property
    def constants(self) -> dict[str, float]:
        return dict(zip(NAMES, self._constants.tolist(), strict=True))

    @property
    def doubt(self) -> Array:
        return self._doubt

    def calibrated(self, frame: pl.DataFrame) -> Self:
        """The same with the most probable constants, given n >= 0 trials in the store's columns."""
        good = rows(frame, ran(frame))
        names = [words(good, name) for name in _STACK]
        stacks = numbered(["|".join(row) for row in zip(*names, strict=True)])
        order = np.random.default_rng(0).permutation(len(good))
        rank = np.zeros(len(good), dtype=np.int64)
        for stack in np.unique(stacks):
            of = order[stacks[order] == stack]
            rank[of] = np.arange(len(of))
        good, stacks = rows(good, rank < MAX_ROWS), stacks[rank < MAX_ROWS]
        read = Reading(good)
        parts, said = read.parts, read.step(self._constants)[0]
        measured = _log(_tokens(read.setup) / numbers(good, "tokens_per_s_per_device"))
        known = np.isfinite(measured - said)
        found, doubt = calibrated(parts[known], measured[known], stacks[known])
        return type(self)(dict(zip(NAMES, found.tolist(), strict=True)), doubt)

    def log_throughput(self, frame: pl.DataFrame) -> Array:
        read = reading(frame)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(_tokens(read.setup)) - read.step(self._constants)[0])

    def memory_bytes(self, frame: pl.DataFrame) -> Array:
        return memory.peak_bytes(reading(frame).terms)

    def memory_terms(self, frame: pl.DataFrame, reported: bool = False) -> Array:
        read = reading(frame)
        return memory.reported(read.setup, read.terms) if reported else read.terms

    def shares(self, frame: pl.DataFrame) -> Array:
        """(n, c) how log time moves when a constant does, by as much as is thinkable of that constant."""
        return np.nan_to_num(reading(frame).step(self._constants)[1]) * SD

    def doubts(self, frame: pl.DataFrame) -> Array:
        return np.nan_to_num(reading(frame).step(self._constants)[1]) @ self._doubt

    def features(self, frame: pl.DataFrame) -> pl.DataFrame:
        read = reading(frame)
        columns = {**_sizes(read), **self._shares(read)}
        return pl.DataFrame([_finite(f"physics.{name}", values) for name, values in columns.items()])

    def _shares(self, read: Reading) -> dict[str, Array]:
        """Times that rest on a rate: null where neither a vendor nor a probe gave that rate."""
        frame = read.frame
        known = {
            kind: np.any(
                [np.isfinite(numbers(frame, name)) for name in frame.columns if name.startswith(prefixes)]
                or [np.zeros(len(frame), bool)],
                axis=0,
            )
            for kind, prefixes in _RESTS_ON.items()
        }
        log_time, slope = read.step(self._constants)
        shares = {"log_step_time_s": np.where(known["compute"], log_time, np.nan)}
        for name, (parts, rate) in _SHARES.items():
            share = slope[:, [NAMES.index(part) for part in parts]].sum(axis=1)
            figure = known["compute"] & (known[rate] if rate else True)
            shares[f"{name}_share_of_step"] = np.where(figure, share, np.nan)
        return shares


def _tokens(setup: Setup) -> Array:
    """(n,) tokens of a step per device."""
    return setup.micro_batch * setup.accumulation * setup.dp * setup.sequence / setup.devices


def _log(values: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.where(values > 0, values, np.nan))


def _finite(name: str, values: Array) -> pl.Series:
    return pl.Series(name, np.where(np.isfinite(values), values, np.nan), nan_to_null=True)


def _sizes(read: Reading) -> dict[str, Array]:
    """What follows from workload, knobs and device count alone."""
    setup = read.setup
    traffic = communication.data_parallel(setup)
    tensor = communication.tensor_parallel(setup)
    peak = memory.peak_bytes(read.terms)
    return {
        "log_rank_parameters": _log(memory.rank_parameters(setup)),
        "log_micro_batch_tokens": _log(setup.tokens),
        "log_micro_batches": _log(setup.accumulation),
        "log_hidden_per_tensor_rank": _log(setup.hidden / setup.tp),
        "log_attention_over_matmul": _log(setup.sequence / setup.hidden),
        "bubble_fraction": bubble_fraction(setup.pp, setup.vp, setup.accumulation),
        "log1p_data_parallel_bytes": np.log1p(traffic.bytes),
        "log1p_data_parallel_messages": np.log1p(traffic.messages),
        "log1p_tensor_parallel_bytes": np.log1p(tensor.bytes),
        "log_peak_memory_bytes": _log(peak),
        "log_peak_memory_over_capacity": _log(peak / setup.memory_bytes),
        "activation_share_of_memory": memory.activation_bytes(setup) / peak,
    }
