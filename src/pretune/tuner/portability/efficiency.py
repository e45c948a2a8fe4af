"""How much of what a platform gives is reached: of its best configuration, its peak, its physical bound."""

from __future__ import annotations

import math

import numpy as np

from pretune.datasets.frameworks.common import ELEMENT_BYTES
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform
from pretune.datasets.workload import Workload
from pretune.tuner.portability.table import Array, Problem

KINDS = ("application", "architectural", "attainable")


def application(problem: Problem) -> Array:
    """(c, p) of the fastest configuration that is known on each platform; NaN where nothing ran."""
    best = np.nanmax(np.where(problem.speed > 0, problem.speed, np.nan), axis=0)
    return np.asarray(problem.speed / best)


def architectural(problem: Problem) -> Array:
    """(c, p) model FLOPs utilisation (PaLM, arXiv:2204.02311, appendix B; causal half, logits included).

    NaN where the vendor gives no peak for the workload's precision.
    """
    needed = problem.workload.model.flops_per_token(problem.workload.sequence_length)
    peaks = [peak(problem.workload, platform) or math.nan for platform in problem.platforms]
    return np.asarray(problem.speed * needed / np.array(peaks))


def hardware_flops(workload: Workload, knobs: Knobs) -> float:
    """Hardware over model FLOPs: what recomputation repeats (Korthikanti et al. 2022, arXiv:2205.05198)."""
    model = workload.model.flops_per_token(workload.sequence_length)
    logits = 6.0 * workload.model.vocabulary * workload.model.hidden_size
    attention = 6.0 * workload.model.layers * workload.model.hidden_size * workload.sequence_length
    again = {"full": (model - logits) / 3, "selective": attention / 3}
    return 1.0 + again.get(knobs.activation_checkpointing or "none", 0.0) / model


def attainable(problem: Problem) -> Array:
    """(c, p) of what the platform's physics allow that configuration: a slow network is not bad tuning.

    The bound is a roofline over a step: compute at the peak (else at what the probe's matmul reached), and
    the gradients' all-reduce over the slowest link between replicas, hidden behind each other. NaN where
    neither is known.
    """
    rows = [
        [bound(problem.workload, platform, knobs) for platform in problem.platforms]
        for knobs in problem.configurations
    ]
    return np.asarray(problem.speed / np.array(rows))


def bound(workload: Workload, platform: Platform, knobs: Knobs) -> float:
    """Tokens/s per device that a configuration cannot exceed there; NaN where nothing is known."""
    tokens = workload.global_batch_tokens / platform.devices
    flops = workload.model.flops_per_token(workload.sequence_length) * tokens
    ceiling = peak(workload, platform) or platform.fingerprint.matmul_fp32_flops_per_s
    times = [flops / ceiling] if ceiling else []
    if sent := gradient_seconds(workload, platform, knobs):
        times.append(sent)
    return tokens / max(times) if times else math.nan


def gradient_seconds(workload: Workload, platform: Platform, knobs: Knobs) -> float | None:
    """A ring all-reduce of one rank's gradients at the link's bandwidth, 2 (n - 1) / n of their bytes each
    way (Thakur et al. 2005, doi 10.1177/1094342005051521); None where the link is not known."""
    split = (knobs.tp or 1) * (knobs.pp or 1)
    replicas = platform.devices // split
    link = platform.inter_node if platform.nodes > 1 else platform.intra_node
    if replicas < 2 or not link.bandwidth_bytes_per_s:
        return None
    size = workload.model.parameters / split * ELEMENT_BYTES.get(workload.precision, 2)
    return 2 * (replicas - 1) / replicas * size / link.bandwidth_bytes_per_s


def peak(workload: Workload, platform: Platform) -> float | None:
    """Dense FLOP/s of one device in the workload's precision; None where the vendor gives none."""
    return getattr(platform.accelerator.peak_flops_per_s, workload.precision, None)
