"""Recorded tables made up here: small platforms whose every configuration has a known throughput."""

from __future__ import annotations

import itertools
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from pretune.datasets import (
    Accelerator,
    Knobs,
    Link,
    ModelSpec,
    PeakFlops,
    Platform,
    Trial,
    TrialStore,
    Workload,
)
from pretune.datasets.frameworks import framework

SPACE: dict[str, list] = {
    "micro_batch": [1, 2, 4, 8],
    "zero_stage": [0, 1, 2, 3],
    "reduce_bucket_size": [5_000_000, 500_000_000],
    "activation_checkpointing": ["none", "full"],
}
MODEL = {"name": "tiny", "layers": 12, "hidden_size": 1024, "heads": 16, "vocabulary": 1024}
WORKLOAD = Workload(
    model=ModelSpec.model_validate(MODEL), sequence_length=1024, global_batch_tokens=16384, precision="fp32"
)


def make_platform(name: str, link: float = 1e9) -> Platform:
    """Two CPU ranks over a link of so many bytes per second."""
    return Platform(
        name=name,
        accelerator=Accelerator(name="core", peak_flops_per_s=PeakFlops(fp32=2e13), memory_bytes=8 * 10**9),
        devices_per_node=1,
        nodes=2,
        inter_node=Link(bandwidth_bytes_per_s=link, latency_s=1e-4),
        backend="gloo",
    )


def step_time_s(knobs: Knobs, link: float) -> float:
    """Compute that large micro batches do better, an optimizer that ZeRO shares out, traffic by stage."""
    compute = 2.5 * (1 + 0.8 / knobs.micro_batch) * (1.3 if knobs.activation_checkpointing == "full" else 1.0)
    volumes = {0: 1.0, 1: 1.5, 2: 1.5, 3: 1.5}[knobs.zero_stage]
    traffic = volumes * 4 * WORKLOAD.model.parameters / link
    calls = 0 if knobs.zero_stage == 0 else WORKLOAD.model.parameters / knobs.reduce_bucket_size
    optimizer = 0.8 if knobs.zero_stage == 0 else 0.2
    return compute + optimizer + traffic + 0.002 * calls


def record(platform: Platform, repeats: int = 2, seed: int = 0, **space: list) -> list[Trial]:
    """Every legal configuration with 1 % noise; the largest micro batch fits only recomputed."""
    rng, deepspeed = np.random.default_rng(seed), framework("deepspeed")
    link = platform.inter_node.bandwidth_bytes_per_s
    trials = []
    grid = SPACE | space
    for number, values in enumerate(itertools.product(*grid.values())):
        knobs = deepspeed.resolve(WORKLOAD, platform, Knobs(**dict(zip(grid, values, strict=True))))
        for repeat in range(repeats):
            noise = math.exp(rng.normal(0, 0.01))
            trials.append(_trial(platform, knobs, f"{platform.name}-{number}-{repeat}", link, noise))
    return trials


def _trial(platform: Platform, knobs: Knobs, trial_id: str, link: float, noise: float) -> Trial:
    common = {
        "trial_id": trial_id,
        "purpose": "history",
        "workload": WORKLOAD,
        "platform": platform,
        "knobs": knobs,
        "created_at": datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=len(trial_id)),
        "wall_s": 1.0,
    }
    if knobs.micro_batch == 8 and knobs.activation_checkpointing == "none":
        return Trial(**common, status="oom", cause="the kernel killed rank 0 for memory")
    step = step_time_s(knobs, link) * noise
    speed = WORKLOAD.global_batch_tokens / step
    return Trial(
        **common,
        status="ok",
        step_time_s=step,
        window_times_s=[step] * 3,
        tokens_per_s=speed,
        tokens_per_s_per_device=speed / platform.devices,
    )


@pytest.fixture(scope="session")
def space() -> dict[str, list]:
    return SPACE


@pytest.fixture(scope="session")
def workload() -> Workload:
    return WORKLOAD


@pytest.fixture(scope="session")
def target() -> Platform:
    return make_platform("slow-link", link=1e8)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, target: Platform) -> Path:
    """A store with the whole space on the target, and the stock defaults at every micro batch."""
    root = tmp_path_factory.mktemp("recorded")
    store = TrialStore(root)
    store.append(record(target))
    store.append(record(target, reduce_bucket_size=[500_000_000], activation_checkpointing=["none"]))
    return root


@pytest.fixture(scope="session")
def fine(target: Platform) -> SimpleNamespace:
    """A space with more values, and an outcome of each of its configurations on the target, by knobs."""
    wider = {"reduce_bucket_size": [10**6, 5 * 10**6, 2 * 10**7, 10**8, 5 * 10**8]}
    outcomes = {frozenset(t.knobs.settings().items()): t for t in record(target, repeats=1, **wider)}
    return SimpleNamespace(space=SPACE | wider, outcomes=outcomes)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two other platforms: a fast link and a middling one."""
    root = tmp_path_factory.mktemp("history")
    for name, link in (("fast-link", 1e9), ("middling-link", 6e8)):
        TrialStore(root).append(record(make_platform(name, link), repeats=1))
    return root


@pytest.fixture
def write_job(tmp_path: Path, recorded: Path, history: Path, target: Platform):
    """Write a job that replays the target; keyword arguments replace fields (None removes one)."""

    def write(**changes: Any) -> Path:
        job = {
            "model": MODEL,
            "sequence_length": 1024,
            "global_batch_tokens": 16384,
            "precision": "fp32",
            "platform": json.loads(target.model_dump_json()),
            "launcher": {"replay": str(recorded)},
            "history": str(history),
            "space": SPACE,
            "budget": {"trials": 4},
            "strategy": "source-order",
            "verify_pairs": 2,
        }
        job = {name: value for name, value in (job | changes).items() if value is not None}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job, sort_keys=False))
        return path

    return write


KERNEL_SPACE = {
    "block": [16, 32, 64, 128, 256],
    "warps": [1, 2, 4, 8],
    "stages": [1, 2, 3, 4],
    "unroll": [False, True],
}


def kernel_seconds(block, warps, stages, unroll, shift=0.0):
    """An invented kernel, fastest at one block size, and out of shared memory for deep pipelines."""
    if block * stages > 512:
        raise MemoryError("shared memory")
    away = (np.log2(block) - 6 - shift) ** 2 + 0.6 * (np.log2(warps) - 1) ** 2 + 0.3 * (stages - 3) ** 2
    return 1e-3 * (1 + 0.4 * away + (0.2 if unroll else 0.0))


def kernel_table(device, shift, scale=1.0):
    rows = []
    for values in itertools.product(*KERNEL_SPACE.values()):
        knobs = dict(zip(KERNEL_SPACE, values, strict=True))
        try:
            speed = scale / kernel_seconds(**knobs, shift=shift)
        except MemoryError:
            speed = None
        rows.append(
            {f"knob.{name}": value for name, value in knobs.items()}
            | {
                "platform.name": device,
                "status": "ok" if speed else "crash",
                "tokens_per_s_per_device": speed,
            }
        )
    return pl.DataFrame(rows)


KERNEL_HISTORY = pl.concat([kernel_table("a", -0.5, 3.0), kernel_table("b", 0.4, 0.2)])


@pytest.fixture(scope="session")
def kernel() -> SimpleNamespace:
    """An invented kernel: its space, its time, and two other devices' tables of it."""
    return SimpleNamespace(space=KERNEL_SPACE, seconds=kernel_seconds, history=KERNEL_HISTORY)
