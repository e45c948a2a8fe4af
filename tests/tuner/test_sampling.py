"""Spaces that are too large to enumerate: sampled, refined, and said to be."""

from __future__ import annotations

import polars as pl
import pytest

from pretune.datasets import Accelerator, Link, PeakFlops, Platform, Workload
from pretune.datasets.presets import model
from pretune.tuner import Space, sampling
from pretune.tuner import space as spaces

WORKLOAD = Workload(
    model=model("llama-2-7b"), sequence_length=4096, global_batch_tokens=512 * 4096, precision="bf16"
)
CLUSTER = Platform(
    name="made-up",
    accelerator=Accelerator(
        name="made-up-80gb",
        peak_flops_per_s=PeakFlops(bf16=1e15),
        memory_bytes=80 * 2**30,
        memory_bandwidth_bytes_per_s=3e12,
    ),
    devices_per_node=8,
    nodes=4,
    intra_node=Link(bandwidth_bytes_per_s=4e11),
    inter_node=Link(bandwidth_bytes_per_s=5e9),
)
SPACE = Space(
    knobs={
        "micro_batch": [1, 2, 4, 8, 16],
        "zero_stage": [0, 1, 2, 3],
        "offload_optimizer": ["none", "cpu"],
        "reduce_bucket_size": [10**6 * n for n in (1, 3, 10, 30, 100, 300)],
        "overlap_comm": [False, True],
        "stage3_prefetch_bucket_size": [10**6, 10**7],
        "activation_checkpointing": ["none", "selective", "full"],
        "attention": ["sdpa", "eager"],
        "compile": [False, True],
    },
    constraints=("micro_batch < 16 OR zero_stage > 0",),
)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(spaces, "MOST_COMBINATIONS", 100)
    monkeypatch.setattr(sampling, "SAMPLE", 40)
    monkeypatch.setattr(sampling, "FASTEST", 5)


def best(found: spaces.Candidates) -> float:
    return float(sampling._score(found.frame).max())


@pytest.mark.usefixtures("few")
def test_refining_finds_what_enumerating_finds_and_sampling_alone_does_not(monkeypatch):
    some = SPACE.candidates(WORKLOAD, CLUSTER)
    again = SPACE.candidates(WORKLOAD, CLUSTER)
    assert some.frame.equals(again.frame)
    monkeypatch.setattr(sampling, "ROUNDS", 0)
    unrefined = SPACE.candidates(WORKLOAD, CLUSTER)
    monkeypatch.setattr(spaces, "MOST_COMBINATIONS", 10**6)
    every = SPACE.candidates(WORKLOAD, CLUSTER)
    assert best(some) == pytest.approx(best(every), abs=1e-9)
    assert best(unrefined) < best(every) - 0.01
    assert len(some) < len(every) / 4


@pytest.mark.usefixtures("few")
def test_only_what_the_space_allows_is_a_candidate_and_the_rest_is_counted():
    found = SPACE.candidates(WORKLOAD, CLUSTER)
    table = found.frame
    assert table.filter((pl.col("knob.micro_batch") == 16) & (pl.col("knob.zero_stage") == 0)).is_empty()
    for name, values in SPACE.knobs.items():
        told = table.filter(pl.col("knob.zero_stage") == 3)[f"knob.{name}"]
        assert set(told) <= set(values), name
    assert found.dropped[sampling.NOT_SEEN] + len(found) <= SPACE.count
    assert found.dropped[sampling.NOT_SEEN] > SPACE.count / 2
