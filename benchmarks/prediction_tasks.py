"""The prediction tasks on published measurements: what is known, and what is to be predicted.

A row of the results is one claim; its tasks are the targets it is made of (one accelerator, one
model size); its splits are the draws of the trials that are known of a target, which are never
scored. Folds of one task and draw are scored together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import published

from pretune.model.columns import configurations

Splits = Iterator["Split"]
MODEL_AND_SCALE = ("model.name", "platform.nodes", "platform.devices_per_node")
FOLD_DRAWS = 3  # ways to cut folds; more say nothing new


@dataclass(frozen=True)
class Split:
    """One fit and what it is scored on; frames in the store's columns.

    ``own`` are the target's trials; without a target, ``folded``, there are none. ``group`` are the
    columns whose equal rows share a fold where a method cross-validates (none: the configuration).
    """

    task: str
    draw: int
    sources: pl.DataFrame
    own: pl.DataFrame
    scored: pl.DataFrame
    folded: bool = False
    group: tuple[str, ...] = ()

    @property
    def known(self) -> pl.DataFrame:
        return pl.concat([self.sources, self.own], how="diagonal")

    def shuffled(self) -> Split:
        """The control: all throughputs of a source, or of the trials, in another order among themselves."""
        column = pl.col("tokens_per_s_per_device").shuffle(seed=self.draw).over("source", "status")
        sources, own = (frame.with_columns(column) for frame in (self.sources, self.own))
        return replace(self, sources=sources, own=own)


@dataclass(frozen=True)
class Row:
    """One claim: ``splits(draws)`` makes its splits; ``reach`` is what issue 3 asks of a figure."""

    name: str
    figure: str
    splits: Callable[[int], Splits]
    reach: dict[str, float]
    quick: bool = False  # whether the gate runs it


def keys(frame: pl.DataFrame, group: tuple[str, ...] = ()) -> list[str]:
    """n keys, equal where rows must not straddle a split."""
    if not group:
        named = frame["model.name"].fill_null("").to_list()
        return [f"{name} {key}" for name, key in zip(named, configurations(frame), strict=True)]
    return frame.select(pl.concat_str(pl.col(group).cast(pl.String), separator=" ")).to_series().to_list()


def folds(task: str, table: pl.DataFrame, group: tuple[str, ...], count: int, draws: int) -> Splits:
    """``count`` folds of whole groups, cut in as many ways as there are draws, :data:`FOLD_DRAWS` at most."""
    number = np.unique(keys(table, group), return_inverse=True)[1]
    for draw in range(min(draws, FOLD_DRAWS)):
        fold = np.random.default_rng(draw).permutation(number.max() + 1)[number] % count
        for k in range(count):
            test = pl.Series(fold == k)
            yield Split(task, draw, table.filter(~test), table.clear(), table.filter(test), True, group)


def carried(task: str, sources: pl.DataFrame, target: pl.DataFrame, trials: int, draws: int) -> Splits:
    """``trials`` random rows of the target are known; the others that ran, and are no repeats, are scored."""
    target = target.filter(status="ok")
    key = pl.Series(keys(target))
    for draw in range(draws if trials else 1):
        order = np.random.default_rng(draw).permutation(len(target))
        own = order[:trials]
        yield Split(task, draw, sources, target[own], target.filter(~key.is_in(key[own].to_list())))


def mosaic_folds(draws: int) -> Splits:
    yield from folds("mosaic", published.read("mosaic_llm_foundry"), MODEL_AND_SCALE, 5, draws)


def mosaic_accelerators(trials: int, draws: int) -> Splits:
    yield from each_left_out(published.read("mosaic_llm_foundry"), "accelerator.name", trials, draws)


def vtrain_folds(draws: int) -> Splits:
    yield from folds("vtrain", published.read("vtrain_single_node"), (), 10, draws)


def vtrain_widths(draws: int) -> Splits:
    yield from each_left_out(published.read("vtrain_single_node"), "model.hidden_size", 0, draws)


def vtrain_multi_node(trials: int, draws: int) -> Splits:
    single, multi = published.read("vtrain_single_node"), published.read("vtrain_multi_node")
    yield from carried("vtrain multi-node", single, multi, trials, draws)


def nanotron_sizes(trials: int, draws: int) -> Splits:
    yield from each_left_out(published.read("nanotron_ultrascale"), "model.name", trials, draws)


def bridge_accelerators(trials: int, draws: int) -> Splits:
    yield from each_left_out(published.read("megatron_bridge"), "accelerator.name", trials, draws)


def korthikanti(draws: int) -> Splits:
    """Never fitted to: its history is what others measured on A100."""
    history = ("vtrain_single_node", "vtrain_multi_node", "aleph_alpha_layouts", "mosaic_llm_foundry")
    others = pl.concat([published.read(name) for name in history], how="diagonal")
    others = others.filter(pl.col("accelerator.name").str.starts_with("A100"))
    target = published.read("multi_platform_small")
    target = target.filter(pl.col("software.framework").str.starts_with("Korthikanti"))
    yield from carried("korthikanti", others, target, 0, draws)


def each_left_out(table: pl.DataFrame, column: str, trials: int, draws: int) -> Splits:
    """One task for each value of ``column``: its rows are the target, all others the sources."""
    for value in table[column].unique().sort().to_list():
        own = pl.col(column) == value
        yield from carried(str(value), table.filter(~own), table.filter(own), trials, draws)


def with_trials(
    name: str,
    figure: str,
    splits: Callable[[int, int], Splits],
    reach: dict[int, dict[str, float]],
    quick: tuple[int, ...] = (),
) -> list[Row]:
    """One row for each number of trials that ``reach`` names."""

    def of(trials: int) -> Callable[[int], Splits]:
        return lambda draws: splits(trials, draws)

    return [
        Row(f"{name}, {trials} trials", figure, of(trials), want, trials in quick)
        for trials, want in reach.items()
    ]


def one(figure: str, values: dict[int, float]) -> dict[int, dict[str, float]]:
    return {trials: {figure: value} for trials, value in values.items()}


MEDIAN, MEAN, RANK = "median_error", "mean_error", "rank_correlation"
ROWS = [
    Row("mosaic, 5 folds by model and scale", MEDIAN, mosaic_folds, {MEDIAN: 0.05}),
    Row("vtrain single-node, 10 folds", MEAN, vtrain_folds, {MEAN: 0.015}),
    Row("vtrain single-node, one width left out", MEAN, vtrain_widths, {MEAN: 0.10}),
    *with_trials(
        "vtrain single to multi-node",
        MEAN,
        vtrain_multi_node,
        one(MEAN, {0: 0.25, 3: 0.14, 5: 0.10}),
        quick=(0, 3),
    ),
    *with_trials(
        "mosaic A100 and H100",
        MEDIAN,
        mosaic_accelerators,
        one(MEDIAN, {0: 0.15, 1: 0.07, 3: 0.06}),
        quick=(0, 3),
    ),
    *with_trials(
        "nanotron, one size left out",
        MEDIAN,
        nanotron_sizes,
        {0: {}, 5: {MEDIAN: 0.20, RANK: 0.90}},
    ),
    *with_trials(
        "megatron-bridge, one accelerator left out",
        MEDIAN,
        bridge_accelerators,
        one(MEDIAN, {0: 0.20, 3: 0.10}),
    ),
    Row("korthikanti 22B to 1T, never fitted", MEAN, korthikanti, {MEAN: 0.06}, quick=True),
]
