"""How well memory is predicted on published measurements: peaks, what runs out of it, and larger models.

    python benchmarks/memory_tasks.py [--json] [--seeds 3]

Peaks of nanotron, one model size left out: a row that ran is off by its relative error; one that
failed counts as wrong where its fullest stage is predicted below 0.9 of the capacity, else as right
(failures there include cluster crashes, and the source does not say which). Out of memory, aleph_alpha,
one model left out: the chance to run is held against the threshold that is best among the
sources, each predicted from the others; failures of unknown cause are learned from, and not scored.
Larger models: the largest of a source as the target, with a history of models at least 4 times smaller at
the same scale, replayed by the shared harness: which trial is the first that runs, and the first
at 0.9 of the best. Reads ``PRETUNE_SHARED`` (default: ../shared beside the project).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import published
from numpy.typing import NDArray

from pretune.model import BoostedTrees, NoPhysics, TransformerPhysics
from pretune.model.boosting import ResidualTrees
from pretune.model.columns import numbers
from pretune.model.features import Encoder
from pretune.model.need import measured_peak

Found = tuple[str, str, pl.DataFrame]  # task, method, per-row predictions
Array = NDArray[np.float64]
OURS, PHYSICS, RAW = "pretune", "physics alone", "raw xgboost"
PEAKS, OUT_OF_MEMORY, LARGER = "peak memory, nanotron", "out of memory, aleph_alpha", "larger model"
WELL_BELOW = 0.9  # of the capacity
THRESHOLDS = np.linspace(0.02, 0.98, 97)
# source -> the suite whose knobs and features it has, target, the models that are 4 times smaller
LARGEST = {
    "aleph": ("llm-bigger-model", "llama-65B", ["llama-13B"]),
    "nanotron": ("llm-other-model", "llama-8.86b", ["llama-1.34b"]),
}
TRIALS, ENOUGH = 16, 0.9


def tasks(seeds: int) -> Iterator[Found]:
    """All rows; ``seeds`` matter to the replays alone."""
    yield from peaks()
    yield from out_of_memory()
    yield from larger(seeds)


def models_left_out(table: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame, pl.DataFrame]]:
    """Name, the other models' rows, its own."""
    for name in table["model.name"].unique().sort():
        own = table["model.name"] == name
        yield name, table.filter(~own), table.filter(own)


def peaks() -> Iterator[Found]:
    for name, sources, target in models_left_out(published.read("nanotron_ultrascale")):
        measured, capacity = measured_peak(target), numbers(target, "accelerator.memory_bytes")
        for method, (seen, needed) in peaks_by(sources, target).items():
            frame = pl.DataFrame(
                {
                    "trial_id": target["trial_id"],
                    "ran": np.isfinite(measured),
                    "measured": measured,
                    "predicted": np.where(np.isfinite(measured), seen, needed),
                    "well_below": needed < WELL_BELOW * capacity,
                }
            )
            yield f"{PEAKS}, without {name}", method, frame


def peaks_by(sources: pl.DataFrame, target: pl.DataFrame) -> dict[str, tuple[Array, Array]]:
    """Method -> (n,) bytes as nanotron's own figure would have it, and of the fullest stage."""
    model, physics = BoostedTrees(n_estimators=0).fit(sources), TransformerPhysics()
    x, capacity = model.encoder_.matrix(target), numbers(target, "accelerator.memory_bytes")
    needed = np.exp(model.need_.over_capacity(target, x)) * capacity
    encoder, log_peak = Encoder(NoPhysics()).fit(sources), np.log(measured_peak(sources))
    known = np.isfinite(log_peak)
    trees = ResidualTrees(300, 5, 0.06, level_sd=5.0, seed=0, n_jobs=1)
    trees.fit(encoder.matrix(sources)[known], log_peak[known])
    raw = np.exp(trees.predict(encoder.matrix(target)))
    counted = physics.memory_bytes(target)
    return {OURS: (model.need_.peak_bytes(target, x), needed), PHYSICS: (counted, counted), RAW: (raw, raw)}


def out_of_memory() -> Iterator[Found]:
    for name, sources, target in models_left_out(published.read("aleph_alpha_layouts")):
        known = target.filter(pl.col("status").is_in(["ok", "oom"]))
        held_out = [(own, chance(rest, own)) for _, rest, own in models_left_out(sources)]
        ok = np.concatenate([(own["status"] == "ok").to_numpy() for own, _ in held_out])
        oom = np.concatenate([(own["status"] == "oom").to_numpy() for own, _ in held_out])
        said = np.concatenate([each for _, each in held_out])
        score = [balanced(said[ok] >= at, said[oom] >= at) for at in THRESHOLDS]
        best = float(np.median(THRESHOLDS[np.array(score) == max(score)]))
        counted = TransformerPhysics().memory_bytes(known) <= numbers(known, "accelerator.memory_bytes")
        for method, predicted, at in ((OURS, chance(sources, known), best), (PHYSICS, counted * 1.0, 0.5)):
            frame = pl.DataFrame(
                {
                    "trial_id": known["trial_id"],
                    "measured": (known["status"] == "ok").cast(pl.Float64),
                    "predicted": predicted,
                    "threshold": at,
                }
            )
            yield f"{OUT_OF_MEMORY}, without {name}", method, frame


def chance(sources: pl.DataFrame, target: pl.DataFrame) -> Array:
    """(n,) to run, by a surrogate that knows the sources."""
    return BoostedTrees(n_estimators=0).fit(sources).predict(target).chance_to_run


def balanced(ran: NDArray[np.bool_], failed: NDArray[np.bool_]) -> float:
    """The mean share judged rightly, of what ran and of what failed; both say whether it was to run."""
    return float((ran.mean() + 1 - failed.mean()) / 2)


def larger(seeds: int) -> Iterator[Found]:
    """The harness's own tasks and runs, with the smaller models alone as sources."""
    sys.path.insert(0, str(published.shared_folder() / "bench"))
    import bench  # type: ignore[import-not-found]
    import layout_tables  # type: ignore[import-not-found]
    import suite  # type: ignore[import-not-found]

    bench.register(f"{OURS}=peer:PretunePeer")
    with tempfile.TemporaryDirectory() as folder:
        layout_tables.main(Path(folder), published.data_folder())
        for source, (name, target, smaller) in LARGEST.items():
            words = suite.SUITES[name][1]
            option = {word: value for word, value in pairwise(words) if word[:2] == "--"}
            files = {model: f"{folder}/model/{source}__{model}.parquet" for model in (target, *smaller)}
            given = argparse.Namespace(
                target=files[target],
                sources=[files[model] for model in smaller],
                lopo=False,
                maximize=True,
                **{key: option[f"--{key.replace('_', '-')}"] for key in ("knobs", "objective", "features")},
                group_by=option["--group-by"],
            )
            for task in bench.load_tasks(given):
                for method in (OURS, "source-order", "random"):
                    for seed in range(seeds):
                        run = bench.run(method, task, seed, TRIALS, 0.0, 1.0)
                        yield f"{LARGER}, {task.label}", method, picked(run)


def picked(run: dict[str, Any]) -> pl.DataFrame:
    """One row per trial: the table's row, and the share of the best that was held after it."""
    return pl.DataFrame(
        {
            "trial_id": [f"row {row}" for row in run["picks"]],
            "trial": range(1, len(run["picks"]) + 1),
            "draw": run["seed"],
            "measured": run["fractions"],
        }
    )


def summary(found: Iterable[Found]) -> list[dict[str, Any]]:
    """One row of figures per task and method; replays averaged over their draws."""
    groups: dict[tuple[str, str], list[pl.DataFrame]] = {}
    for task, method, frame in found:
        groups.setdefault((task, method), []).append(frame)
    return [
        {"task": task, "method": method, **figures(task, frames)} for (task, method), frames in groups.items()
    ]


def figures(task: str, frames: list[pl.DataFrame]) -> dict[str, float]:
    if task.startswith(LARGER):
        held = [frame["measured"].to_numpy() for frame in frames]
        return {
            "first_that_ran": float(np.mean([first(each > 0) for each in held])),
            "first_at_0.9": float(np.mean([first(each >= ENOUGH) for each in held])),
        }
    (frame,) = frames
    measured, predicted = frame["measured"].to_numpy(), frame["predicted"].to_numpy()
    if task.startswith(OUT_OF_MEMORY):
        runs, ok = predicted >= frame["threshold"][0], measured > 0
        halfway = balanced(predicted[ok] >= 0.5, predicted[~ok] >= 0.5)
        return {"balanced_accuracy": balanced(runs[ok], runs[~ok]), "at_one_half": halfway}
    ran, below = frame["ran"].to_numpy(), frame["well_below"].to_numpy()
    error = np.abs(predicted / measured - 1)
    return {
        "median_error_ran": float(np.median(error[ran])),
        "median_error": float(np.median(np.where(ran, error, np.where(below, np.inf, 0.0)))),
        "failed_predicted_well_below": float(below[~ran].mean()),
    }


def first(reached: NDArray[np.bool_]) -> float:
    """The first trial; one more than there were, where none did."""
    return float(reached.argmax() + 1 if reached.any() else len(reached) + 1)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if not published.data_folder().is_dir():
        parser.error(f"{published.data_folder()}: is missing; set PRETUNE_SHARED")
    rows = summary(tasks(arguments.seeds))
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            shown = "  ".join(
                f"{name} {value:.3f}" for name, value in row.items() if not isinstance(value, str)
            )
            print(f"{row['task']:60} {row['method']:14} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
