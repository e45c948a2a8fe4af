"""Trials for the tests of the store: small, complete, and different from each other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pretune.datasets import Accelerator, Knobs, Link, ModelSpec, PeakFlops, Platform, Status, Trial, Workload

MODEL = ModelSpec(name="t", layers=2, hidden_size=64, heads=2, vocabulary=512, max_positions=64)
WORKLOAD = Workload(model=MODEL, sequence_length=32, global_batch_tokens=128, precision="fp32")
PLATFORM = Platform(
    name="two-ranks",
    accelerator=Accelerator(name="cpu", peak_flops_per_s=PeakFlops(fp32=1e11), memory_bytes=2**32),
    devices_per_node=2,
    inter_node=Link(bandwidth_bytes_per_s=1.25e8),
    backend="gloo",
)


def sample_trial(trial_id: str, platform: str = "two-ranks", **fields: Any) -> Trial:
    """An ok trial of that id; ``fields`` replaces what a test is about. One that failed has no throughput."""
    settings: dict[str, Any] = {
        "workload": WORKLOAD,
        "platform": PLATFORM.model_copy(update={"name": platform}),
        "knobs": Knobs(micro_batch=2, zero_stage=1, precision="fp32", **{"env.OMP_PROC_BIND": "true"}),
        "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "status": Status.OK,
        "window_times_s": [0.5, 0.25],
        "tokens_per_s": 341.5,
        "tokens_per_s_per_device": 170.75,
        "hosts": ["a", "b"],
        "counters": {"net.bytes_sent": 1e6},
        "missing": {"nvml": "no NVIDIA driver"},
        "software": {"torch": "2.13.0"},
    }
    if fields.get("status", Status.OK) is not Status.OK:
        settings |= {"cause": "as the test has it", "tokens_per_s": None, "tokens_per_s_per_device": None}
    return Trial(trial_id=trial_id, **(settings | fields))
