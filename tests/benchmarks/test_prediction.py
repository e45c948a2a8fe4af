"""The benchmark of predictions: what may be known of a target, how it is scored, and when the gate fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import prediction
import prediction_gate as gate
import prediction_tasks as tasks
import pytest


def trials(configurations: int, repeats: int = 1) -> pl.DataFrame:
    rows = configurations * repeats
    batch = np.arange(rows) % configurations + 1
    return pl.DataFrame(
        {
            "trial_id": [f"t{i}" for i in range(rows)],
            "source": ["s"] * rows,
            "status": ["ok"] * rows,
            "model.name": ["m"] * rows,
            "knob.micro_batch": batch,
            "tokens_per_s_per_device": 100.0 + np.arange(rows),
        }
    )


def test_trials_of_a_target_and_their_repeats_are_not_scored() -> None:
    table = trials(configurations=10, repeats=3)
    splits = list(tasks.carried("t", table.clear(), table, trials=4, draws=5))
    assert len(splits) == 5
    assert len({tuple(split.own["trial_id"]) for split in splits}) == 5
    for split in splits:
        assert len(split.own) == 4
        assert not set(split.own["knob.micro_batch"]) & set(split.scored["knob.micro_batch"])
    assert len(list(tasks.carried("t", table.clear(), table, trials=0, draws=5))) == 1


def test_repeats_share_a_fold_and_every_row_is_scored_once_a_draw() -> None:
    table = trials(configurations=9, repeats=2)
    splits = list(tasks.folds("t", table, (), count=3, draws=2))
    for draw in (0, 1):
        scored = pl.concat([split.scored for split in splits if split.draw == draw])
        assert sorted(scored["trial_id"]) == sorted(table["trial_id"])
    for split in splits:
        assert not set(split.sources["knob.micro_batch"]) & set(split.scored["knob.micro_batch"])


def test_the_control_keeps_a_sources_throughputs_but_not_where_they_belong() -> None:
    table = pl.concat([trials(20), trials(20).with_columns(source=pl.lit("other"))])
    split = tasks.Split("t", 0, table, table.clear(), table)
    mixed = split.shuffled().sources
    assert mixed["trial_id"].equals(table["trial_id"])
    assert not mixed["tokens_per_s_per_device"].equals(table["tokens_per_s_per_device"])
    for source in ("s", "other"):
        kept = [sorted(f.filter(source=source)["tokens_per_s_per_device"]) for f in (mixed, table)]
        assert kept[0] == kept[1]


def test_an_interval_score_is_the_width_and_twenty_times_what_lies_outside() -> None:
    low, high = np.zeros(3), np.ones(3)
    found = prediction.interval_scores(np.array([0.5, 1.1, -0.2]), low, high)
    assert found == pytest.approx([1.0, 3.0, 5.0])


def test_rank_beyond_the_physics_is_chance_for_what_only_repeats_it() -> None:
    rng = np.random.default_rng(0)
    physics, own = rng.normal(size=(2, 2000))
    measured = physics + own
    assert prediction.ranked(physics, measured) > 0.6
    assert abs(prediction.ranked(-physics + rng.normal(size=2000), measured, physics)) < 0.1
    assert prediction.ranked(physics + own, measured, physics) > 0.9
    assert prediction.ranked(np.ones(2000), measured) == 0.0


def summary(error: float, rank: float, ratio: float) -> dict[str, object]:
    figures = {"median_error": error, "rank_correlation": rank}
    row = {
        "row": "a row",
        "figure": "median_error",
        "methods": {"pretune": figures},
        "standard_deviation_over_draws": 0.0,
    }
    return {"rows": [row], "seeds": 2, "intervals": {"all": {"pretune": {"over_raw_xgboost": ratio}}}}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ((0.104, 0.89, 0.42), ()),
        ((0.05, 1.0, 0.1), ()),
        ((0.12, 0.9, 0.4), ("median_error was 0.1 ",)),
        ((0.1, 0.8, 0.4), ("rank_correlation was 0.9 ",)),
        ((0.1, 0.9, 0.6), ("intervals",)),
    ],
)
def test_the_gate_names_what_got_worse_by_more_than_its_noise(
    tmp_path: Path, now: tuple[float, float, float], said: tuple[str, ...]
) -> None:
    path = tmp_path / "gate.json"
    gate.write(summary(0.1, 0.9, 0.4), path)
    found = gate.worse(summary(*now), path)
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))


def test_a_figure_that_is_gone_or_no_number_is_worse(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    gate.write(summary(0.1, 0.9, 0.4), path)
    assert len(gate.worse(summary(float("nan"), 0.9, 0.4), path)) == 1
    none = summary(0.1, 0.9, 0.4) | {"rows": []}
    assert len(gate.worse(none, path)) == 2
