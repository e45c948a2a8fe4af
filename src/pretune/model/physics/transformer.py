"""The physical baseline of transformer training: a step's time and memory from first principles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from pretune.model.base import Array, Baseline
from pretune.model.columns import numbers
from pretune.model.physics import communication, flops, memory
from pretune.model.physics.bubble import bubble_fraction, pipeline_s
from pretune.model.physics.setup import Setup, read_setup

# a time is only a figure where what it rests on is known; elsewhere the feature stays null
_RESTS_ON = {
    "compute": ("peak_flops_per_s", "fingerprint.matmul"),
    "memory_traffic": ("accelerator.memory_bandwidth", "fingerprint.copy"),
    "communication": ("intra_node.bandwidth", "inter_node.bandwidth", "fingerprint.allreduce_busbw"),
}


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one optimizer step on the slowest rank, by component: (n,) each, exposed parts only."""

    compute: Array
    memory_traffic: Array
    tensor_parallel: Array
    pipeline_parallel: Array
    data_parallel: Array
    optimizer: Array
    bubble: Array

    @property
    def total(self) -> Array:
        return sum(vars(self).values(), np.zeros_like(self.compute))


class TransformerPhysics(Baseline):
    """Compute, memory traffic, communication, bubble and optimizer of a decoder-only transformer.

    Rows whose model shape or sequence length is unknown give NaN (features: null).
    """

    name: ClassVar[str] = "transformer"

    def log_throughput(self, frame: pl.DataFrame) -> Array:
        setup = read_setup(frame)
        tokens = setup.micro_batch * setup.accumulation * setup.dp * setup.sequence
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(tokens / setup.devices / step_times(setup).total)

    def memory_bytes(self, frame: pl.DataFrame) -> Array:
        return memory.peak_bytes(read_setup(frame))

    def memory_terms(self, frame: pl.DataFrame, reported: bool = False) -> Array:
        return memory.terms(read_setup(frame), reported)

    def shares(self, frame: pl.DataFrame) -> Array:
        """(n, 7) each component's share of the step: how log time moves with that component's speed."""
        times = step_times(read_setup(frame))
        return np.nan_to_num(np.column_stack(list(vars(times).values())) / times.total[:, None])

    def features(self, frame: pl.DataFrame) -> pl.DataFrame:
        setup = read_setup(frame)
        columns = {**_sizes(setup), **_shares(setup, frame)}
        return pl.DataFrame({f"physics.{name}": values for name, values in columns.items()}).with_columns(
            pl.all().cast(pl.Float64).replace([np.inf, -np.inf], None).fill_nan(None)
        )


def step_times(setup: Setup) -> StepTimes:
    """The components of a step. A stage's micro batch is its layers, and the logits on the last one."""
    layer = flops.layer_times(setup)
    layers = setup.layers / setup.pp
    traffic = layers * 4 * layer.traffic_s + flops.accumulate_s(setup)
    compute = layers * (layer.forward_s + layer.backward_s - 4 * layer.traffic_s) + flops.logits_s(setup)
    tensor = communication.tensor_parallel(setup).seconds + communication.expert_parallel(setup).seconds
    context = communication.context_parallel(setup)
    per_step = setup.accumulation * (compute + traffic)
    tensor = tensor + communication.exposed_s(setup, context, per_step)
    stage = compute + traffic + tensor / setup.accumulation
    times = np.where(communication.reduces_every_micro_step(setup), setup.accumulation, 1.0)
    cover = times * layers * layer.backward_s
    return StepTimes(
        compute=setup.accumulation * compute,
        memory_traffic=setup.accumulation * traffic,
        tensor_parallel=tensor,
        pipeline_parallel=communication.pipeline_parallel(setup).seconds,
        data_parallel=communication.exposed_s(setup, communication.data_parallel(setup), cover),
        optimizer=flops.optimizer_s(setup),
        bubble=pipeline_s(setup, stage) - setup.accumulation * stage,
    )


def _log(values: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.where(values > 0, values, np.nan))


def _sizes(setup: Setup) -> dict[str, Array]:
    """What follows from workload, knobs and device count alone."""
    traffic = communication.data_parallel(setup)
    tensor = communication.tensor_parallel(setup)
    peak = memory.peak_bytes(setup)
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


def _shares(setup: Setup, frame: pl.DataFrame) -> dict[str, Array]:
    """Times that rest on a rate: null where neither a vendor nor a probe gave that rate."""
    known = {
        kind: np.any(
            [np.isfinite(numbers(frame, name)) for name in frame.columns if name.startswith(prefixes)]
            or [np.zeros(len(frame), bool)],
            axis=0,
        )
        for kind, prefixes in _RESTS_ON.items()
    }
    times = step_times(setup)
    total = np.where(known["compute"], times.total, np.nan)
    shares = {f"{name}_share_of_step": values / total for name, values in vars(times).items()}
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        shares[f"{name}_share_of_step"][~known["communication"]] = np.nan
    for name in ("memory_traffic", "optimizer"):
        shares[f"{name}_share_of_step"][~known["memory_traffic"]] = np.nan
    return {"log_step_time_s": _log(total), **shares}
