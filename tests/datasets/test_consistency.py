"""What no measurement can be is found in exactly the rows that have it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.datasets import shipped_history
from pretune.datasets.consistency import contradictions, summary, without

EACH, TOTAL, STEP = "tokens_per_s_per_device", "tokens_per_s", "step_time_s"


def clean() -> pl.DataFrame:
    """Trials that ran, with every redundant column: 2 devices, accumulation 1 to 16, 40 % MFU."""
    steps = [1, 2, 4, 8, 16, 2, 4, 8]
    count = len(steps)
    tokens = np.array([2 * 4 * each * 1024 for each in steps])
    flops = 6 * (8 * 12 * 512**2 + 1000 * 512) + 6 * 8 * 512 * 1024
    speed = np.full(count, 0.4 * 1e14 / flops)
    return pl.DataFrame(
        {
            "status": ["ok"] * count,
            "model.layers": 8,
            "model.hidden_size": 512,
            "model.heads": 8,
            "model.vocabulary": 1000,
            "workload.sequence_length": 1024,
            "workload.global_batch_tokens": tokens,
            "workload.precision": "bf16",
            "platform.devices_per_node": 2,
            "platform.nodes": 1,
            "accelerator.memory_bytes": 80e9,
            "peak_flops_per_s.bf16": 1e14,
            "knob.micro_batch": 4,
            "knob.accumulation": steps,
            "knob.dp": 2,
            EACH: speed,
            TOTAL: 2 * speed,
            STEP: tokens / speed / 2,
            "window_times_s": [[each] * 3 for each in tokens / speed / 2],
            "peak_memory_allocated_bytes": 30e9,
            "peak_memory_reserved_bytes": 40e9,
            "peak_memory_device_bytes": 45e9,
        }
    )


Change = Callable[[pl.DataFrame], pl.DataFrame]


def scaled(factor: pl.Expr | float, *names: str) -> Change:
    return lambda frame: frame.with_columns(pl.col(name) * factor for name in names)


def put(value: float | None, *names: str) -> Change:
    return lambda frame: frame.with_columns(pl.lit(value, pl.Float64).alias(name) for name in names)


def swapped(a: str, b: str) -> Change:
    return lambda frame: frame.with_columns(pl.col(b).alias(a), pl.col(a).alias(b))


steps = pl.col("knob.accumulation")
CORRUPTIONS: dict[str, tuple[Change, str]] = {
    "nan": (put(math.nan, EACH), "no positive number"),
    "negative": (scaled(-1.0, EACH, TOTAL), "no positive number"),
    "infinite": (put(math.inf, TOTAL), "no positive number"),
    "microseconds": (scaled(1000.0, STEP), "is not the global batch"),
    "milliseconds": (scaled(1e-3, EACH, TOTAL), "is not the global batch"),
    "accumulation": (scaled(steps, EACH, TOTAL), "accumulation steps times"),
    "node for device": (scaled(8.0, EACH), "x devices"),
    "swapped throughputs": (swapped(EACH, TOTAL), "x devices"),
    "swapped time": (swapped(STEP, EACH), "x devices"),
    "swapped batch": (
        swapped("workload.global_batch_tokens", "workload.sequence_length"),
        "is less than one sequence",
    ),
    "swapped memory": (swapped("peak_memory_allocated_bytes", "peak_memory_device_bytes"), "reserved for it"),
    "swapped shape": (swapped("model.layers", "model.hidden_size"), "exceeds hidden_size"),
    "too much memory": (scaled(1024.0, "peak_memory_device_bytes"), "exceeds the device's memory"),
    "no batch": (put(0, "knob.micro_batch"), "is below 1"),
    "other layout": (put(4, "knob.dp"), "number of devices"),
    "other windows": (
        lambda frame: frame.with_columns(pl.col("window_times_s").list.eval(pl.element() * 1e3)),
        "do not average to step_time_s",
    ),
    # all of the redundant figures agree with each other, and are too good to be true
    "MFU above 1": (
        lambda frame: frame.with_columns(
            pl.col(EACH, TOTAL) * 3, pl.col(STEP) / 3, pl.col("window_times_s").list.eval(pl.element() / 3)
        ),
        "MFU above 1",
    ),
}


def injected(frame: pl.DataFrame, change: Change, at: list[int]) -> pl.DataFrame:
    """``frame`` with the rows ``at`` changed."""
    numbered = frame.with_row_index("at")
    chosen = pl.col("at").is_in(at)
    parts = [numbered.filter(~chosen), change(numbered.filter(chosen))]
    return pl.concat(parts, how="vertical_relaxed").sort("at").drop("at")


def test_a_clean_history_is_all_kept() -> None:
    assert contradictions(clean()) == []
    assert contradictions(shipped_history().frame()) == []
    assert contradictions(pl.DataFrame()) == []
    assert contradictions(pl.DataFrame({"knob.block": [1, 2]})) == []  # a tuning table


@pytest.mark.parametrize("kind", CORRUPTIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_wrong_is_found_where_it_was_put(kind: str, data: st.DataObject) -> None:
    change, reason = CORRUPTIONS[kind]
    frame = clean()
    # a throughput times one step is as it was
    able = [row for row in range(len(frame)) if kind != "accumulation" or frame["knob.accumulation"][row] > 1]
    at = sorted(data.draw(st.sets(st.sampled_from(able), min_size=1)))
    frame = injected(frame, change, at)
    found = contradictions(frame)
    assert sorted({each.row for each in found}) == at
    assert {each.row for each in found if reason in each.reason} == set(at)
    assert all(each.field in str(each) and each.remedy in str(each) for each in found)
    assert len(without(frame, found)) == len(frame) - len(at)
    assert f"set aside {len(at)} of {len(frame)} trials" in summary(found, len(frame))


SHIPPED = {
    kind: CORRUPTIONS[kind]
    for kind in ("nan", "negative", "microseconds", "milliseconds", "accumulation", "swapped throughputs")
}


@pytest.mark.parametrize("kind", SHIPPED)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_in_the_history_that_ships_too(kind: str, data: st.DataObject) -> None:
    frame = shipped_history().frame()
    able = (pl.col("status") == "ok") & ((steps > 1) if kind == "accumulation" else True)
    rows = frame.with_row_index("at").filter(able)["at"].to_list()
    at = sorted(data.draw(st.sets(st.sampled_from(rows), min_size=1, max_size=60)))
    found = contradictions(injected(frame, SHIPPED[kind][0], at))
    assert sorted({each.row for each in found}) == at


def test_a_bound_that_rests_on_a_guess_is_none() -> None:
    fast = clean().with_columns(pl.col(EACH, TOTAL) * 3, pl.lit(None).alias(STEP)).drop("window_times_s")
    assert len(contradictions(fast)) == len(fast)
    for unknown in ("peak_flops_per_s.bf16", "model.layers", "workload.sequence_length"):
        assert contradictions(fast.with_columns(pl.lit(None).alias(unknown))) == []
    # the 8-bit peak is another one, and fp16 runs on the same units
    assert contradictions(fast.with_columns(pl.lit("fp8").alias("workload.precision"))) == []
    assert len(contradictions(fast.with_columns(pl.lit("fp16").alias("workload.precision")))) == len(fast)
