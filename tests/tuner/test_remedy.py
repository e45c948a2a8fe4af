"""Spaces in which everything fails, on a device of 8 GB that holds one sequence a time or recomputes."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from pretune.datasets import Knobs, Trial
from pretune.datasets.frameworks import framework
from pretune.datasets.schema import to_table
from pretune.tuner.remedy import failure
from pretune.tuner.space import Space

NOTHING = pl.DataFrame(to_table([]))


@pytest.fixture
def failed(workload, target):
    """What is said where every configuration of a space ended with a status, on devices of so many GB."""

    def told(status="oom", memory_gb=8.0, constraints=(), **knobs):
        space = Space(knobs=knobs, constraints=constraints)
        smaller = target.accelerator.model_copy(update={"memory_bytes": memory_gb and int(memory_gb * 1e9)})
        platform = target.model_copy(update={"accelerator": smaller})
        candidates = space.candidates(workload, platform)
        trials = [
            Trial(
                trial_id=f"t{number}",
                workload=workload,
                platform=platform,
                knobs=each,
                created_at=datetime(2025, 1, 1, tzinfo=UTC),
                status=status,
                cause="rank 0 was killed",
            )
            for number, each in enumerate(candidates.knobs)
        ]
        return failure(candidates, space, trials, NOTHING), platform

    return told


def test_it_says_by_how_much_and_what_should_fit(failed, workload):
    found, platform = failed(micro_batch=[8], zero_stage=[0, 1], memory_gb=5.0)
    assert found.causes == {"oom: rank 0 was killed": 2}
    least, most = found.need_bytes
    assert 5e9 < least < most
    assert found.device_bytes == 5e9
    nearest = found.nearest
    assert nearest.in_space
    assert nearest.need_bytes < 5e9
    assert set(nearest.changes) <= {"activation_checkpointing", "offload_optimizer"}  # not those of the space
    assert framework("deepspeed").problems(workload, platform, Knobs(**nearest.knobs)) == []
    none_of, needs, remedy = found.sentences()
    assert none_of == "none of 2 trials ran (2 x oom: rank 0 was killed)"
    assert f"of a device that has {5e9 / 2**30:.2f} GiB: the least is {least / 5e9:.2f}x of that" in needs
    assert remedy.startswith("likely to run with ")
    assert "activation_checkpointing: " in remedy


def test_what_the_space_excludes_is_looked_at_last_and_said_to_be(failed):
    everything = {"activation_checkpointing": ["none"], "offload_optimizer": ["none"]}
    found, _ = failed(micro_batch=[8], zero_stage=[0], memory_gb=3.0, **everything)
    assert not found.nearest.in_space
    assert found.sentences()[-1].endswith("which the space excludes")


def test_a_constraint_holds_wherever_it_looks(failed):
    fixed = {"activation_checkpointing": ["none"], "zero_stage": [0]}
    free, _ = failed(micro_batch=[8], memory_gb=3.0, **fixed)
    held, _ = failed(micro_batch=[8], memory_gb=3.0, constraints=["micro_batch >= 8"], **fixed)
    assert free.nearest.knobs["micro_batch"] < 8
    assert held.nearest is None or held.nearest.knobs["micro_batch"] == 8


def test_where_not_even_the_least_fits_more_devices_are_the_remedy(failed):
    found, _ = failed(micro_batch=[1], zero_stage=[3], memory_gb=0.05)
    assert found.nearest is None
    assert "use more devices" in found.sentences()[-1]


def test_what_memory_does_not_explain_is_not_put_down_to_it(failed):
    found, _ = failed("crash", micro_batch=[1], zero_stage=[3], memory_gb=80.0)
    assert "memory alone does not explain it" in found.sentences()[1]
    unknown, _ = failed("crash", micro_batch=[1], zero_stage=[3], memory_gb=None)
    assert "whose memory the platform does not state" in unknown.sentences()[1]
