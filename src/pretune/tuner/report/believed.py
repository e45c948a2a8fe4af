"""How far predictions can be trusted: parity and coverage on trials that they had not seen."""

from __future__ import annotations

from collections import Counter

import polars as pl

from pretune.errors import InputError
from pretune.model.base import INTERVAL
from pretune.model.evaluation import cross_validate, scores
from pretune.tuner.report.gathered import Gathered
from pretune.tuner.tables import Cell, Section, Table

FOLDS = 2
MOST_TRIALS = 3000  # of a platform, the last ones
MOST_PLATFORMS = 5  # a platform takes seconds
_KEY, _TITLE = "parity", "Predicted and measured"
_COLUMNS = ("trial_id", "platform", "measured", "predicted", "low", "high")


def believed(gathered: Gathered) -> Section:
    """A session's own predictions, made before each trial; of a store, surrogates of each platform that are
    fitted here without the configurations that they predict."""
    rows = _foretold(gathered) if gathered.session else _held_out(gathered)
    if rows.is_empty():
        return Section(_KEY, _TITLE, ["no trial that ran was predicted before it"])
    made = (
        "made before each trial ran"
        if gathered.session
        else f"by each platform's surrogate, fitted without the configurations it predicts ({FOLDS} folds)"
    )
    groups = rows.partition_by("platform", maintain_order=True)
    inside = int(_inside(rows).sum())
    words = [
        f"predictions {made}",
        f"{inside} of {len(rows)} measured throughputs lie within the {INTERVAL:.0%} interval",
    ]
    return Section(_KEY, _TITLE, words, [_points(rows), _errors(groups)])


def _foretold(gathered: Gathered) -> pl.DataFrame:
    pairs = [(trial, told) for trial in gathered.trials if (told := gathered.predicted.get(trial.trial_id))]
    found = [
        (
            trial.trial_id,
            trial.platform.name,
            trial.tokens_per_s_per_device,
            told.tokens_per_s_per_device,
            told.low,
            told.high,
        )
        for trial, told in pairs
        if trial.ok
    ]
    return pl.DataFrame(found, schema=list(_COLUMNS), orient="row")


def _held_out(gathered: Gathered) -> pl.DataFrame:
    from pretune.model import BoostedTrees

    counts = Counter(trial.platform.name for trial in gathered.trials)
    parts = []
    for name, _ in counts.most_common(MOST_PLATFORMS):
        gathered.progress(f"surrogate of {name}: {FOLDS} fits")
        mine = gathered.frame.filter(pl.col("platform.name") == name).tail(MOST_TRIALS)
        try:
            parts.append(cross_validate(BoostedTrees, mine, folds=FOLDS)[1].select(_COLUMNS))
        except InputError:  # one configuration: nothing can be held out
            continue
    return pl.concat(parts) if parts else pl.DataFrame(schema=list(_COLUMNS))


def _inside(rows: pl.DataFrame) -> pl.Series:
    return rows.select(pl.col("measured").is_between("low", "high")).to_series()


def _points(rows: pl.DataFrame) -> Table:
    told = rows.rename({"trial_id": "trial"}).with_columns(
        interval=pl.when(pl.col("measured").is_between("low", "high"))
        .then(pl.lit("inside"))
        .otherwise(pl.lit("outside"))
    )
    return Table.of(told.to_dicts(), brief=())


def _errors(groups: list[pl.DataFrame]) -> Table:
    records: list[dict[str, Cell]] = []
    for group in groups:
        found = scores(group)
        rank = found["rank_correlation"]
        records.append(
            {
                "platform": group["platform"][0],
                "trials": len(group),
                "median error, %": 100 * found["median_absolute_relative_error"],
                "inside the interval, %": 100 * found["coverage"],
                "high / low, median": found["median_interval_ratio"],
                "rank correlation": rank if rank == rank else None,
            }
        )
    return Table.of(records, "Errors")
