"""Rows of a history that contradict themselves: what no measurement can be, found before it is learned.

Every check is an identity between columns that say the same thing twice, or a bound that physics or the
schema sets. A column that is missing or null is no contradiction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
from pydantic import ValidationError

from pretune.datasets.store import FILE, FILE_ROW
from pretune.datasets.workload import ModelSpec

ROUNDED = 0.02  # by which published figures of one run differ
AVERAGED = 0.10  # ... a step time that is a median from a throughput that is a mean
CAPACITY = 1.10  # a vendor's 80 GB may be 80 GiB, which is 7 % more

_THROUGHPUT = "tokens_per_s_per_device"
_MEASURED = (_THROUGHPUT, "tokens_per_s", "step_time_s")
_PEAKS = tuple(f"peak_memory_{kind}_bytes" for kind in ("allocated", "reserved", "device"))
_DEGREES = ("dp", "tp", "pp", "cp")
_COUNTS = (
    *(f"knob.{name}" for name in ("micro_batch", "accumulation", *_DEGREES, "vp", "ep")),
    *(f"model.{name}" for name in ("layers", "hidden_size", "heads", "kv_heads", "vocabulary")),
    *("workload.sequence_length", "workload.global_batch_tokens", "platform.devices_per_node"),
    "platform.nodes",
)
# what a precision may run on: formats of one width share their units, fp32 may be run as tf32, and what
# is in four bits is only most of the products
_UNITS = {
    "fp32": ("fp32", "tf32"),
    "tf32": ("tf32",),
    "bf16": ("bf16", "fp16"),
    "fp16": ("bf16", "fp16"),
    **dict.fromkeys(("fp8", "mxfp8"), ("fp8",)),
    **dict.fromkeys(("fp4", "mxfp4", "nvfp4"), ("fp8", "fp4")),
}


@dataclass(frozen=True)
class Finding:
    """What is wrong with one row: the field, the reason, the row's figures, and what to do.

    ``row`` counts from 0, in ``file`` where that is known, else in the frame. One that is only a
    ``warning`` is reported, and its row is learned from.
    """

    row: int
    field: str
    reason: str
    shown: str
    remedy: str
    file: str | None = None
    warning: bool = False

    def __str__(self) -> str:
        where = f"{self.file} row {self.row}" if self.file else f"row {self.row}"
        return f"{where}: {self.field}: {self.reason} ({self.shown}); {self.remedy}"

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "text": str(self)}


@dataclass(frozen=True)
class _Check:
    field: str
    reason: str
    wrong: pl.Expr  # null: it cannot be said
    remedy: str
    shown: tuple[str, ...]  # columns whose figures are quoted


def contradictions(frame: pl.DataFrame) -> list[Finding]:
    """Everything that is wrong within single rows of n trials in the store's columns, in their order."""
    if frame.is_empty():
        return []
    known = _known(frame)
    checks = list(_checks())
    wrong = known.select(check.wrong.fill_null(False).alias(str(i)) for i, check in enumerate(checks))
    found = []
    for i, check in enumerate(checks):
        for row in wrong[str(i)].arg_true().to_list():
            shown = ", ".join(f"{name} {_figure(known[row, name])}" for name in check.shown)
            found.append(Finding(row, check.field, check.reason, shown, check.remedy))
    return sorted(found, key=lambda each: each.row)


def without(frame: pl.DataFrame, findings: Iterable[Finding]) -> pl.DataFrame:
    """The rows of ``frame`` that no finding sets aside; their ``row`` counts in the frame."""
    bad = {finding.row for finding in findings if not finding.warning}
    return frame.filter(~pl.int_range(pl.len()).is_in(sorted(bad)))


def located(frame: pl.DataFrame, findings: Iterable[Finding]) -> list[Finding]:
    """The findings with file and row, where the frame has the columns that say so."""
    if FILE not in frame.columns:
        return list(findings)
    return [
        Finding(**(vars(each) | {"row": frame[each.row, FILE_ROW], "file": frame[each.row, FILE]}))
        for each in findings
    ]


def summary(findings: Iterable[Finding], rows: int) -> str:
    """One line: how many of so many rows were set aside, and why."""
    first = {(each.file, each.row): each for each in reversed([f for f in findings if not f.warning])}
    why = Counter(f"{each.field}: {each.reason}" for each in first.values())
    reasons = "; ".join(f"{count} of them {reason}" for reason, count in why.most_common(3))
    more = f"; and {len(why) - 3} other reasons" if len(why) > 3 else ""
    return f"set aside {len(first)} of {rows} trials: {reasons}{more}" if first else ""


# -- the checks -----------------------------------------------------------------------
def _checks() -> Iterator[_Check]:
    yield from _figures()
    yield from _throughput()
    yield from _layout()
    yield from _memory()
    yield from _model()


def _figures() -> Iterator[_Check]:
    # of a trial that failed, NaN and 0 are ways to say that nothing was measured
    ran = pl.col("status").fill_null("ok") == "ok"
    for name in _MEASURED:
        wrong = ran & ~(pl.col(name).is_finite() & (pl.col(name) > 0))
        yield _Check(name, "is no positive number", wrong, "measure it again, or import it empty", (name,))
    for name in _PEAKS:
        peak = pl.col(name).fill_nan(None)
        wrong = ~(peak.is_finite() & (peak >= 0))
        yield _Check(name, "is no amount of memory", wrong, "give bytes, or leave it empty", (name,))
    for name in _COUNTS:
        yield _Check(name, "is below 1", ~(pl.col(name) >= 1), "give a count, or leave it empty", (name,))
    failed = (pl.col("status") != "ok") & (pl.col(_THROUGHPUT) > 0)
    yield _Check("status", "failed, with a throughput", failed, "say which is right", ("status", _THROUGHPUT))


def _throughput() -> Iterator[_Check]:
    each, total, step = (pl.col(name) for name in _MEASURED)
    split = ~_alike(total, each * pl.col("devices"), ROUNDED)
    yield _Check(
        "tokens_per_s",
        "is not tokens_per_s_per_device x devices",
        split,
        "columns may be swapped, or divided by another count",
        ("tokens_per_s", _THROUGHPUT, "devices"),
    )
    total = pl.coalesce(total, each * pl.col("devices"))
    batch, times = pl.col("workload.global_batch_tokens"), pl.col("knob.accumulation")
    off = ~_alike(total * step, batch, AVERAGED)
    multiplied = off & (times > 1) & _alike(total * step, batch * times, AVERAGED)
    quoted = ("step_time_s", _THROUGHPUT, "workload.global_batch_tokens", "knob.accumulation")
    yield _Check(
        _THROUGHPUT,
        "is the accumulation steps times the global batch over step_time_s",
        multiplied,
        "count the tokens of a window once, over the time of the whole window",
        quoted,
    )
    yield _Check(
        "step_time_s",
        "times the throughput is not the global batch",
        off & ~multiplied.fill_null(False),
        "check the units (seconds, tokens) and the columns' order",
        quoted,
    )
    window = pl.col("mean_window_time_s")
    yield _Check(
        "window_times_s",
        "do not average to step_time_s",
        ~_alike(window, step, AVERAGED),
        "check that both are in seconds",
        ("mean_window_time_s", "step_time_s"),
    )


def _layout() -> Iterator[_Check]:
    degrees = [pl.col(f"knob.{name}") for name in _DEGREES]
    # tensor, pipeline and context parallelism that nobody states are 1; data parallelism follows
    product = degrees[0] * degrees[1].fill_null(1) * degrees[2].fill_null(1) * degrees[3].fill_null(1)
    yield _Check(
        "knob.dp",
        "x tp x pp x cp is not the number of devices",
        product != pl.col("devices"),
        "check the degrees of parallelism and the devices",
        (*(f"knob.{name}" for name in _DEGREES), "devices"),
    )
    yield _Check(
        "knob.ep",
        "exceeds the devices of a pipeline stage",
        pl.col("knob.ep") > pl.col("devices") / degrees[2].fill_null(1),
        "check the degrees of parallelism and the devices",
        ("knob.ep", "knob.pp", "devices"),
    )
    micro, times = pl.col("knob.micro_batch"), pl.col("knob.accumulation")
    sequence, batch = pl.col("workload.sequence_length"), pl.col("workload.global_batch_tokens")
    yield _Check(
        "knob.micro_batch",
        "x accumulation x dp is not the global batch",
        ~_alike(micro * times * degrees[0] * sequence, batch, ROUNDED),
        "check the three knobs and the batch (in tokens)",
        ("knob.micro_batch", "knob.accumulation", "knob.dp", "workload.global_batch_tokens"),
    )
    yield _Check(
        "workload.global_batch_tokens",
        "is less than one sequence",
        batch < sequence,
        "give tokens, not sequences; the two columns may be swapped",
        ("workload.global_batch_tokens", "workload.sequence_length"),
    )


def _memory() -> Iterator[_Check]:
    for name in _PEAKS:
        yield _Check(
            name,
            "exceeds the device's memory",
            pl.col(name) > CAPACITY * pl.col("accelerator.memory_bytes"),
            "give bytes of one device",
            (name, "accelerator.memory_bytes"),
        )
    allocated, reserved, _ = _PEAKS
    yield _Check(
        allocated,
        "exceeds what was reserved for it",
        pl.col(allocated) > (1 + ROUNDED) * pl.col(reserved),
        "the two columns may be swapped",
        (allocated, reserved),
    )


def _model() -> Iterator[_Check]:
    hidden, heads, kv = (pl.col(f"model.{name}") for name in ("hidden_size", "heads", "kv_heads"))
    yield _Check(
        "model.heads",
        "does not divide hidden_size",
        hidden % heads != 0,
        "check the model's shape; columns may be swapped",
        ("model.hidden_size", "model.heads"),
    )
    yield _Check(
        "model.layers",
        "exceeds hidden_size",
        pl.col("model.layers") > hidden,
        "check the model's shape; columns may be swapped",
        ("model.layers", "model.hidden_size"),
    )
    yield _Check(
        "model.kv_heads",
        "does not divide heads",
        heads % kv != 0,
        "check the model's shape; columns may be swapped",
        ("model.heads", "model.kv_heads"),
    )
    yield _Check(
        _THROUGHPUT,
        "is more than the vendor's peak allows (MFU above 1)",
        pl.col("mfu") > 1,
        "check the units, the peak of the precision, and the count of devices",
        (_THROUGHPUT, "mfu"),
    )


# -- reading --------------------------------------------------------------------------
def _alike(a: pl.Expr, b: pl.Expr, tolerance: float) -> pl.Expr:
    return (a - b).abs() <= tolerance * b.abs()


def _known(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that the checks read, as floats, null where nothing is stated; and what follows of them."""
    peaks = {f"peak_flops_per_s.{name}" for units in _UNITS.values() for name in units}
    names = dict.fromkeys([*_MEASURED, *_PEAKS, *_COUNTS, "accelerator.memory_bytes", *sorted(peaks)])
    known = frame.select(
        pl.int_range(pl.len()).alias("row"),  # a frame without any of the columns keeps its height
        _column(frame, "status", pl.String),
        *(_column(frame, name) for name in names),
    ).with_columns(
        devices=pl.col("platform.devices_per_node") * pl.col("platform.nodes").fill_null(1),
        mean_window_time_s=_mean_windows(frame),
    )
    return known.with_columns(mfu=pl.col(_THROUGHPUT) * _flops_per_token(frame) / _peak(frame))


def _column(frame: pl.DataFrame, name: str, kind: type[pl.DataType] = pl.Float64) -> pl.Expr:
    if name not in frame.columns:
        return pl.lit(None, kind).alias(name)
    return pl.col(name).cast(kind, strict=False)


def _mean_windows(frame: pl.DataFrame) -> pl.Series | pl.Expr:
    windows = frame["window_times_s"] if "window_times_s" in frame.columns else None
    if windows is None or not isinstance(windows.dtype, pl.List):
        return pl.lit(None, pl.Float64)
    return windows.list.mean().cast(pl.Float64, strict=False)


def _peak(frame: pl.DataFrame) -> pl.Series:
    """(n,) FLOP/s of the fastest units that the row's precision may run on; of all, where it states none."""
    names = ("knob.precision", "workload.precision")
    precision = pl.coalesce(_column(frame, name, pl.String) for name in names)
    cases = [*_UNITS.items(), (None, ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4"))]
    peaks = [
        pl.when(precision.eq_missing(pl.lit(case, pl.String))).then(
            pl.max_horizontal(_column(frame, f"peak_flops_per_s.{name}") for name in units)
        )
        for case, units in cases
    ]
    return frame.select(pl.int_range(pl.len()), peak=pl.coalesce(peaks))["peak"]


def _flops_per_token(frame: pl.DataFrame) -> pl.Series:
    """(n,) model FLOPs, the causal half of attention; null where the shape is unknown."""
    shape = [name for name in frame.columns if name.startswith("model.") and name != "model.name"]
    shape += ["workload.sequence_length"] * ("workload.sequence_length" in frame.columns)
    if not shape:
        return pl.Series([None], dtype=pl.Float64).new_from_index(0, len(frame))
    kinds = frame.select(shape).unique(maintain_order=True)
    flops = pl.Series("flops", [_flops(row) for row in kinds.to_dicts()], dtype=pl.Float64)
    found = frame.select(shape).join(
        kinds.with_columns(flops), on=shape, how="left", nulls_equal=True, maintain_order="left"
    )
    return found["flops"]


def _flops(row: dict[str, object]) -> float | None:
    """At least so many. A vocabulary that nobody states counts as nothing; experts count once, since
    sources disagree whether ``ffn_size`` is one expert's or that of all a token passes through."""
    sequence = row.pop("workload.sequence_length", None)
    fields = {name.removeprefix("model."): value for name, value in row.items() if value is not None}
    if fields.pop("experts", 0) and "ffn_size" not in fields:
        fields["ffn_size"] = 1
    fields.pop("experts_per_token", None)
    try:
        model = ModelSpec.model_validate({"name": "", "vocabulary": 1, **fields})
    except ValidationError:
        return None
    return (
        model.flops_per_token(int(sequence)) if isinstance(sequence, int | float) and sequence > 0 else None
    )


def _figure(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "unknown" if value is None else str(value)
