"""How much of what a platform gives is reached: of its best configuration, its peak, its physical bound."""

from __future__ import annotations

import math

import numpy as np

from pretune.datasets.frameworks.common import ELEMENT_BYTES
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import StatedPlatform
from pretune.datasets.stated import StatedWorkload
from pretune.datasets.workload import ModelSpec
from pretune.tuner.portability.table import Array, Problem

KINDS = ("application", "architectural", "attainable")
COUNTED = {
    *("name", "layers", "hidden_size", "heads", "vocabulary", "kv_heads", "ffn_size", "gated_mlp"),
}  # what FLOPs depend on
UNITS = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}  # formats of one width share their units


def application(problem: Problem) -> Array:
    """(c, p) of the fastest configuration that is known on each platform; NaN where nothing ran."""
    best = np.nanmax(np.where(problem.speed > 0, problem.speed, np.nan), axis=0)
    return np.asarray(problem.speed / best)


def architectural(problem: Problem) -> Array:
    """(c, p) model FLOPs utilisation (PaLM, arXiv:2204.02311, appendix B; causal half, logits included).

    NaN where the vendor gives no peak for the workload's precision, or the source not the model's shape.
    """
    needed = model_flops(problem.workload) or math.nan
    peaks = [peak(problem.workload, platform) or math.nan for platform in problem.platforms]
    return np.asarray(problem.speed * needed / np.array(peaks))


def shape(workload: StatedWorkload) -> ModelSpec | None:
    """The model where all is stated that FLOPs depend on; one of which no experts are stated has none."""
    told = {name: value for name, value in workload.model.model_dump().items() if value is not None}
    return ModelSpec.from_mapping(told, workload.name) if told.keys() >= COUNTED else None


def model_flops(workload: StatedWorkload) -> float | None:
    """Of one token; None where the source does not state the model's shape."""
    model, length = shape(workload), workload.sequence_length
    return model.flops_per_token(length) if model and length else None


def hardware_flops(workload: StatedWorkload, knobs: Knobs) -> float | None:
    """Hardware over model FLOPs: what recomputation repeats (Korthikanti et al. 2022, arXiv:2205.05198).

    None where the source does not state the model's shape."""
    shaped, model = shape(workload), model_flops(workload)
    if not shaped or not model:
        return None
    logits = 6.0 * shaped.vocabulary * shaped.hidden_size
    attention = 6.0 * shaped.layers * shaped.hidden_size * (workload.sequence_length or 0)
    again = {"full": (model - logits) / 3, "selective": attention / 3}
    return 1.0 + again.get(knobs.activation_checkpointing or "none", 0.0) / model


def attainable(problem: Problem) -> Array:
    """(c, p) of what the platform's physics allow that configuration: a slow network is not bad tuning.

    The bound is a roofline over a step: compute at the peak (else at what the probe's matmul reached), and
    the gradients' all-reduce over the links between replicas, hidden behind each other. NaN where
    neither is known.
    """
    rows = [
        [bound(problem.workload, platform, knobs) for platform in problem.platforms]
        for knobs in problem.configurations
    ]
    return np.asarray(problem.speed / np.array(rows))


def bound(workload: StatedWorkload, platform: StatedPlatform, knobs: Knobs) -> float:
    """Tokens/s per device that a configuration cannot exceed there; NaN where nothing is known."""
    tokens = (workload.global_batch_tokens or 0) / platform.devices
    flops = model_flops(workload)
    ceiling = peak(workload, platform) or platform.fingerprint.matmul_fp32_flops_per_s
    times = [flops * tokens / ceiling] if flops and ceiling else []
    if sent := gradient_seconds(workload, platform, knobs):
        times.append(sent)
    return tokens / max(times) if times else math.nan


def gradient_seconds(workload: StatedWorkload, platform: StatedPlatform, knobs: Knobs) -> float | None:
    """The least that all-reducing one rank's gradients takes: within each node, then what is reduced there
    between nodes, over the links of all its devices. Either sends 2 (n - 1) / n of the bytes each way (Thakur
    et al. 2005, doi 10.1177/1094342005051521), and they may hide behind each other.

    None where links or model are not known, or experts are spread over the replicas.
    """
    model, split = shape(workload), (knobs.tp or 1) * (knobs.pp or 1)
    replicas = platform.devices // split
    if model is None or replicas < 2 or (knobs.ep or 1) > 1:
        return None
    size = model.parameters / split * ELEMENT_BYTES.get(workload.precision or "", 2)
    together = min(platform.devices_per_node // min(split, platform.devices_per_node), replicas)
    ways = (
        (together, size, platform.intra_node.bandwidth_bytes_per_s),
        (replicas / together, size / together, platform.inter_node.bandwidth_bytes_per_s),
    )
    return max((2 * (n - 1) / n * sent / link for n, sent, link in ways if n > 1 and link), default=None)


def peak(workload: StatedWorkload, platform: StatedPlatform) -> float | None:
    """Dense FLOP/s of one device in the workload's precision; None where the vendor gives none."""
    precision = workload.precision or ""
    return getattr(platform.accelerator.peak_flops_per_s, UNITS.get(precision, precision), None)
