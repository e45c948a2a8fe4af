"""What no row says alone: a unit or a factor that sets a trial, or a whole file, apart from the others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_platforms import trials

from pretune.datasets.store import FILE, FILE_ROW
from pretune.model.plausibility import examine

EACH = "tokens_per_s_per_device"


def history() -> pl.DataFrame:
    """Every configuration of two platforms, without any redundant column; some ran out of memory."""
    frame = pl.concat([trials("slow"), trials("capped")], how="diagonal")
    steps = 16 // (2 * frame["knob.micro_batch"])
    files = frame["platform.name"] + "/" + (pl.Series(range(len(frame))) % 3).cast(pl.String)
    return frame.with_columns(
        steps.cast(pl.Int64).alias("knob.accumulation"), files.alias(FILE)
    ).with_columns(pl.int_range(pl.len()).over(FILE).alias(FILE_ROW))


HISTORY = history()
RAN = HISTORY.with_row_index("at").filter(pl.col("status") == "ok")


def times(factor: pl.Expr | float, at: pl.Expr) -> pl.DataFrame:
    wrong = pl.when(at).then(pl.col(EACH) * factor).otherwise(pl.col(EACH))
    return HISTORY.with_row_index("at").with_columns(wrong.alias(EACH)).drop("at")


def test_a_clean_history_is_all_kept() -> None:
    found = examine(HISTORY)
    assert found.findings == []
    assert found.summary == ""
    assert found.kept.equals(HISTORY)
    assert examine(pl.DataFrame()).kept.is_empty()
    table = pl.DataFrame({"platform.name": ["a"] * 9, "knob.block": range(9), EACH: [1.0] * 8 + [1e9]})
    assert len(examine(table).kept) == 9  # without physics nobody can say


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e-6, 1e6])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_rows_in_other_units_are_found_where_they_are(factor: float, data: st.DataObject) -> None:
    at = data.draw(st.sets(st.sampled_from(RAN["at"].to_list()), min_size=1, max_size=40))
    found = examine(times(factor, pl.col("at").is_in(list(at))))
    wrong = {(HISTORY[row, FILE], HISTORY[row, FILE_ROW]) for row in at}
    assert {(each.file, each.row) for each in found.findings} == wrong
    assert len(found.kept) == len(HISTORY) - len(at)
    assert f"set aside {len(at)} of {len(HISTORY)} trials" in found.summary


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_throughput_times_the_accumulation_steps_is_found(data: st.DataObject) -> None:
    many = RAN.filter(pl.col("knob.accumulation") >= 8)["at"].to_list()
    at = data.draw(st.sets(st.sampled_from(many), min_size=1, max_size=10))
    found = examine(times(pl.col("knob.accumulation"), pl.col("at").is_in(list(at))))
    wrong = {(HISTORY[row, FILE], HISTORY[row, FILE_ROW]) for row in at}
    assert {(each.file, each.row) for each in found.findings} == wrong
    assert all("accumulation" in each.reason for each in found.findings)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_whole_file_in_other_units_is_set_aside_when_another_says_so(factor: float) -> None:
    found = examine(times(factor, pl.col(FILE) == "slow/1"))
    ok = HISTORY.filter(pl.col(FILE) == "slow/1")
    assert len(found.findings) == (ok["status"] == "ok").sum()
    assert {each.file for each in found.findings} == {"slow/1"}
    assert set(found.kept.filter(pl.col("status") == "ok")[FILE]) == set(HISTORY[FILE]) - {"slow/1"}


def test_a_whole_platform_in_other_units_is_only_warned_of() -> None:
    frame = times(1e-3, pl.col("platform.name") == "slow").filter(pl.col(FILE).is_in(["slow/0", "capped/0"]))
    found = examine(frame)
    assert found.kept.equals(frame)
    assert found.findings
    assert all(each.warning and each.file == "slow/0" for each in found.findings)
    assert found.summary == ""


def test_a_bad_history_teaches_what_a_clean_one_does() -> None:
    from pretune.model import BoostedTrees

    rng = np.random.default_rng(0)
    at = rng.permutation(RAN["at"].to_numpy())[:60].tolist()
    bad = times(1e-3, pl.col("at").is_in(at))
    test = trials("slow", 40, seed=9)

    def error(frame: pl.DataFrame) -> float:
        said = BoostedTrees(seed=0).fit(frame.filter(pl.col("platform.name") == "slow")).predict(test)
        return float(np.nanmedian(np.abs(np.log(test[EACH].to_numpy()) - said.log_mean)))

    learned, spoilt, clean = error(examine(bad).kept), error(bad), error(HISTORY)
    assert learned < 1.5 * clean + 0.01
    assert spoilt > 3 * learned


# rows whose own columns contradict each other, looked at one by one: layouts that are marked in their notes
# (fugaku), device counts that were defaults (megatron_ci), degrees that were left out (the others)
CONTRADICTORY = {
    "fugaku_a64fx": 5,
    "megatron_bridge": 1,
    "megatron_ci_tests": 7,
    "mlperf_training": 3,
    "nvidia_docs_misc": 3,
}


@pytest.mark.shared
def test_no_published_trial_is_set_aside_without_cause() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    spec = importlib.util.spec_from_file_location("published", folder / "published.py")
    assert spec is not None
    assert spec.loader is not None
    published = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(published)
    if not published.data_folder().is_dir():
        pytest.skip("PRETUNE_SHARED holds no published measurements")
    aside = {}
    for path in sorted(published.data_folder().glob("*.csv")):
        if path.stem == "fms_acceleration":  # of fine-tuning, with batches in words
            continue
        raw = pl.read_csv(path, infer_schema_length=None)
        more = {"tokens_per_s": "tokens_per_s_total", "step_time_s": "step_time_s"}
        frame = published.read(path.stem).with_columns(
            raw[theirs].cast(pl.Float64, strict=False).alias(ours) for ours, theirs in more.items()
        )
        aside[path.stem] = len(frame) - len(examine(frame).kept)
    assert {name: count for name, count in aside.items() if count} == CONTRADICTORY
