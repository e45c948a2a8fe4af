"""What a configuration sends: the framework's own counts, timed by the links of the platform."""

from __future__ import annotations

import polars as pl
import pytest

from pretune.datasets.frameworks import framework
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Accelerator, Fingerprint, Link, LinkFit, Platform
from pretune.datasets.presets import model
from pretune.datasets.schema import to_table
from pretune.datasets.workload import Workload
from pretune.tuner.comm import Communication, communication
from pretune.tuner.space import Candidates

WORKLOAD = Workload(
    model=model("llama-2-7b"), sequence_length=4096, global_batch_tokens=2**22, precision="bf16"
)
NODES = Platform(
    name="two-nodes",
    accelerator=Accelerator(name="made-up", memory_bytes=80 * 2**30),
    devices_per_node=8,
    nodes=2,
    intra_node=Link(bandwidth_bytes_per_s=4e11),
    inter_node=Link(bandwidth_bytes_per_s=5e10, latency_s=1e-5),
)


def sent(platform: Platform = NODES, **knobs: object) -> Communication:
    resolved = framework("deepspeed").resolve(WORKLOAD, platform, Knobs(**{"micro_batch": 1} | knobs))
    of = Candidates(WORKLOAD, platform, "deepspeed", [resolved])
    (found,) = communication({"it": resolved}, of, pl.DataFrame(to_table([])))
    return found


@pytest.mark.parametrize("stage", range(4))
def test_calls_and_bytes_are_those_that_the_framework_declares(stage: int) -> None:
    knobs = framework("deepspeed").resolve(WORKLOAD, NODES, Knobs(micro_batch=1, zero_stage=stage))
    declared = framework("deepspeed").collectives(WORKLOAD, NODES, knobs)
    found = sent(zero_stage=stage)
    assert [(s.op, s.calls, s.bytes) for s in found.sent] == [(c.op, c.calls, c.bytes) for c in declared]
    assert found.step_s is not None
    assert 0 < found.exposed_s <= found.seconds < found.step_s


def test_a_message_takes_latency_and_its_bytes_over_the_measured_link() -> None:
    fit = LinkFit(bandwidth_bytes_per_s=1e9, latency_s=2e-4)
    slow = NODES.model_copy(update={"fingerprint": Fingerprint(inter_node_all_reduce=fit)})
    (reduced,) = sent(slow).sent
    # a ring of 16 ranks passes 15/16 of each tensor twice; 8 devices of a node share the ring's way out
    assert reduced.seconds == pytest.approx(reduced.calls * 2e-4 + 2 * 15 / 16 * reduced.bytes / 8e9)
    assert reduced.seconds > 5 * sent().sent[0].seconds
    assert sent(slow, zero_stage=3).sent[-1].seconds == sent(zero_stage=3).sent[-1].seconds  # gathers: not


def test_smaller_buckets_are_more_messages_and_overlap_hides_them() -> None:
    large, small = sent(zero_stage=1), sent(zero_stage=1, reduce_bucket_size=10**7)
    assert small.sent[0].calls > 10 * large.sent[0].calls
    assert small.sent[0].bytes == large.sent[0].bytes
    assert small.seconds > large.seconds
    hidden = sent(zero_stage=1, overlap_comm=True)
    assert hidden.seconds == large.seconds
    assert hidden.exposed_s < 0.5 * large.exposed_s


def test_one_device_sends_nothing() -> None:
    alone = NODES.model_copy(update={"devices_per_node": 1, "nodes": 1})
    found = sent(alone)
    assert (found.sent, found.seconds, found.exposed_s) == ((), 0.0, 0.0)
    assert found.asdict()["collectives"] == []
