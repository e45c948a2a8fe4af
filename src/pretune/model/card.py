"""The model card of a surrogate: what it learned from, how well it does, and where it must not be used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import polars as pl

from pretune.datasets.spec import Spec
from pretune.model.attribution import attributions
from pretune.model.base import INTERVAL
from pretune.model.columns import device_counts, words, workload_names
from pretune.model.evaluation import scores
from pretune.model.limits import limits, software_stacks
from pretune.model.saving import CARD, versions
from pretune.model.surrogate import BoostedTrees

SHOWN = 15  # attributions on the page; the JSON has all


class Errors(Spec):
    """Of trials that were held out; None where there are too few to tell."""

    trials: int
    median: float | None = None
    """Median of |predicted / measured - 1|."""
    mean: float | None = None
    coverage: float | None = None
    """Share of the trials that lay within their 90 % interval."""
    interval_width: float | None = None
    """Mean of (high - low) / predicted."""
    rank_correlation: float | None = None
    """Spearman's."""

    @classmethod
    def of(cls, held_out: pl.DataFrame) -> Self:
        """``held_out`` as from :func:`pretune.model.cross_validate`."""
        if not len(held_out):
            return cls(trials=0)
        found = {name: value if math.isfinite(value) else None for name, value in scores(held_out).items()}
        width = held_out.select((pl.col("high") - pl.col("low")) / pl.col("predicted")).to_series().mean()
        return cls(
            trials=len(held_out),
            median=found["median_absolute_relative_error"],
            mean=found["mean_absolute_relative_error"],
            coverage=found["coverage"],
            interval_width=float(width) if isinstance(width, float) else None,
            rank_correlation=found["rank_correlation"],
        )


class Part(Spec):
    """Some of the trials: how many by status, and the errors on those held out."""

    trials: dict[str, int]
    errors: Errors


class Card(Spec):
    """What a user of a saved surrogate must know; the same as JSON and, by :meth:`markdown`, as a page."""

    name: str
    everything: Part
    by_workload: dict[str, Part]
    by_devices: dict[str, Part]
    attributions: dict[str, float]
    """Feature -> mean absolute effect on throughput (:func:`pretune.model.attribution.attributions`)."""
    ranges: dict[str, tuple[float, float]]
    """Numeric feature -> least and greatest value seen."""
    words: dict[str, list[str]]
    """Feature in words -> those seen."""
    must_not: list[str]
    """Uses that the data do not support."""
    software: list[str]
    baseline: str
    settings: dict[str, str | int]
    versions: dict[str, str]

    @classmethod
    def of(
        cls,
        name: str,
        fitted: BoostedTrees,
        trials: pl.DataFrame,
        held_out: pl.DataFrame,
        settings: Mapping[str, str | int],
    ) -> Self:
        """``fitted`` on all of ``trials``; ``held_out``, predictions of some by fits without them, as from
        :func:`pretune.model.cross_validate`, may be empty; ``settings``: seeds, and what else made it.
        """
        keys = trials.select(
            status=pl.Series(words(trials, "status", "ok"), dtype=pl.String),
            workload=workload_names(trials),
            devices=device_counts(trials),
        )
        return cls(
            name=name,
            everything=_part(keys, held_out),
            by_workload=_parts("workload", keys, held_out),
            by_devices=_parts("devices", keys, held_out),
            attributions=attributions(fitted, trials, fitted.seed),
            ranges=fitted.encoder_.ranges_,
            words=fitted.encoder_.words_,
            must_not=limits(fitted, trials, held_out),
            software=software_stacks(trials),
            baseline=fitted.baseline_.name,
            settings=dict(settings),
            versions=versions(),
        )

    def markdown(self, pictures: list[Path] | None = None) -> str:
        """A page; ``pictures`` are shown by their file names, so that they must lie beside it."""
        parts = {"all": self.everything, **self.by_workload}
        parts |= {f"{count} devices": part for count, part in self.by_devices.items()}
        blocks = [
            f"# Surrogate of {self.name}",
            "Predicts tokens/s per device and the chance to run, by boosted trees over the baseline "
            f"`{self.baseline}`, for configurations of this platform that were not run.",
            "## It must not be used for",
            *_bullets(self.must_not),
            "## Trials, and errors on those held out",
            _table(_PART_COLUMNS, [[name, *_part_cells(part)] for name, part in parts.items()]),
            "Errors are relative, of fits that had not seen the configuration. *within*: share inside of the "
            f"{INTERVAL:.0%} interval; *width*: of that interval over the prediction, on average.",
            *(f"![{path.stem}]({path.name})" for path in pictures or []),
            "## What moves its predictions",
            "Mean absolute SHAP value of what trees add to the baseline, as a change of throughput.",
            _table(
                ("feature", "effect"), [[k, f"{v:.2%}"] for k, v in list(self.attributions.items())[:SHOWN]]
            ),
            "## What it has seen",
            _table(("feature", "values"), [[name, seen] for name, seen in self._domain()]),
            "## How it was made",
            *_bullets([f"Software of the trials: {stack}" for stack in self.software]),
            *_bullets([f"{name}: {value}" for name, value in {**self.settings, **self.versions}.items()]),
        ]
        return "\n\n".join(blocks).replace("\n\n- ", "\n- ") + "\n"

    def _domain(self) -> list[tuple[str, str]]:
        numbers = {n: f"{a:g}" if a == b else f"{a:g} to {b:g}" for n, (a, b) in self.ranges.items()}
        return sorted({**numbers, **{n: ", ".join(seen) for n, seen in self.words.items()}}.items())

    def save(self, folder: Path, pictures: list[Path] | None = None) -> list[Path]:
        """Write the page and, beside it, ``card.json``; returns both."""
        page, data = folder / CARD, (folder / CARD).with_suffix(".json")
        page.write_text(self.markdown(pictures), encoding="utf-8")
        data.write_text(self.model_dump_json(indent=1), encoding="utf-8")
        return [page, data]


def _parts(kind: str, keys: pl.DataFrame, held_out: pl.DataFrame) -> dict[str, Part]:
    names = keys[kind].unique().sort().to_list()
    return {n: _part(keys.filter(pl.col(kind) == n), held_out.filter(pl.col(kind) == n)) for n in names}


def _part(keys: pl.DataFrame, held_out: pl.DataFrame) -> Part:
    counts = keys["status"].value_counts().sort("count", "status", descending=[True, False])
    return Part(trials=dict(counts.iter_rows()), errors=Errors.of(held_out))


_PART_COLUMNS = ("of", "trials", "held out", "median error", "mean", "within", "width", "rank correlation")


def _part_cells(part: Part) -> list[str]:
    errors = part.errors
    shares = (errors.median, errors.mean, errors.coverage, errors.interval_width)
    rank = "" if errors.rank_correlation is None else f"{errors.rank_correlation:.3f}"
    counts = ", ".join(f"{count} {status}" for status, count in part.trials.items())
    return [counts, str(errors.trials), *("" if v is None else f"{v:.1%}" for v in shares), rank]


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _bullets(lines: list[str]) -> list[str]:
    return [f"- {line}" for line in lines]
