"""What every kind of memory takes over what physics counts, learned from measured peaks and from outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from pretune.model.base import Array
from pretune.model.physics.memory import KINDS, STATED_SD

MAX_ROWS = 2000  # peaks, and outcomes, that are learned from
KERNEL_KIND = list(KINDS).index("activations_whole")  # what an attention or norm kernel keeps more or less of
PEAK_SD, PEAK_DEGREES = 0.08, 3.0  # Student's t of the log of measured over predicted peaks
NOISE = 0.02  # a share of outcomes that the need for memory does not explain
# log width of the edge; log odds that a trial fails although it fits, and that it is not
# recorded as out of memory although it was: mean and sd
_NUISANCE = np.array([[np.log(0.1), 0.7], [-3.0, 1.0], [0.0, 2.0]])
CAPACITY_SD = (
    0.7  # of the log of a capacity that nobody states, about the most that was counted where one ran
)
# what each status says; one that was refused before it began (invalid) says nothing
STATUSES = {"ok": "ok", "oom": "oom", "crash": "lost", "timeout": "lost", "diverged": "spoilt"}


@dataclass(frozen=True)
class Rows:
    """n trials as the factors see them: ``seen`` and ``needed`` (n, stages, k) bytes by kind, of what the
    measured ``peak`` (n,) covers and of what must fit into ``capacity`` (n,); NaN where unknown."""

    seen: Array
    needed: Array
    kernel: NDArray[np.object_]  # "" where it is not stated
    peak: Array
    capacity: Array
    status: NDArray[np.object_]


@dataclass(frozen=True)
class Factors:
    """``log_factor`` (k,) of every kind, and of what a kernel keeps, by its name; ``capacity``: bytes,
    as outcomes show it where nobody states one; NaN without such."""

    log_factor: Array = field(default_factory=lambda: np.log([kind.usual for kind in KINDS.values()]))
    kernels: dict[str, float] = field(default_factory=dict)
    capacity: float = np.nan

    def log_bytes(self, terms: Array, kernel: NDArray[np.object_]) -> Array:
        """(n,) log of the fullest stage, of (n, stages, k) terms."""
        extra = np.zeros(len(kernel))
        for name, more in self.kernels.items():
            extra[kernel == name] = more
        return _log_bytes(terms, self.log_factor, extra)[0]

    def fitted(self, rows: Rows, trust: float = 0.0) -> Self:
        """The most probable factors, where these were expected. Peaks speak by their logs, outcomes by which
        side of the capacity they say the need was on; what neither speaks of stays as it is.
        ``trust``: by how much the sds shrink about factors that other trials have shown."""
        problem = _Problem(rows, self, 1 - trust)
        if not problem.says_anything:
            return self
        found = minimize(problem.loss, problem.start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
        kinds, kernels = len(KINDS), len(problem.names)
        named = dict(zip(problem.names, found[kinds : kinds + kernels].tolist(), strict=True))
        capacity = float(np.exp(found[-1])) if problem.unstated.any() else self.capacity
        return type(self)(found[:kinds], self.kernels | named, capacity)

    def state(self) -> dict[str, Any]:
        capacity = None if np.isnan(self.capacity) else self.capacity
        return {"log_factor": self.log_factor.tolist(), "kernels": self.kernels, "capacity": capacity}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        capacity = np.nan if state["capacity"] is None else state["capacity"]
        return cls(np.array(state["log_factor"], dtype=np.float64), state["kernels"], capacity)


def _log_bytes(terms: Array, log_factor: Array, extra: Array) -> tuple[Array, Array]:
    """(n,) log of the fullest stage's bytes, and (n, k) each kind's share of it, which is its slope."""
    parts = terms * np.exp(log_factor)
    parts[:, :, KERNEL_KIND] *= np.exp(extra)[:, None]
    totals = parts.sum(axis=2)
    fullest = np.nan_to_num(totals).argmax(axis=1)
    at = np.arange(len(terms)), fullest
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(totals[at]), parts[at] / totals[at][:, None]


def _some(known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """At most :data:`MAX_ROWS` of the rows, evenly."""
    rows = np.flatnonzero(known)
    return np.asarray(rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_ROWS)).astype(int)])


class _Problem:
    """Minus the log of the posterior, with its slope, over [factors, kernels, nuisance]."""

    def __init__(self, rows: Rows, expected: Factors, scale: float) -> None:
        counted = np.isfinite(rows.needed).all(axis=(1, 2))
        self.peaks = _some(counted & np.isfinite(rows.peak))
        outcome = np.array([STATUSES.get(value, "") for value in rows.status], dtype=object)
        stated = np.isfinite(rows.capacity)
        # of a device of unknown capacity, failures alone say nothing: nothing shows how much it has
        shown = np.isfinite(expected.capacity) or bool((counted & ~stated & (outcome == "ok")).any())
        self.outcomes = _some(counted & np.isin(outcome, ("ok", "oom", "lost")) & (stated | shown))
        used = np.concatenate([self.peaks, self.outcomes])
        self.names = sorted(set(rows.kernel[used]) - {""})
        self.rows, self.outcome = rows, outcome[self.outcomes]
        names = np.array(self.names, dtype=object)
        self.has_kernel = (rows.kernel[:, None] == names[None, :]).astype(np.float64)
        self.unstated = np.isnan(rows.capacity[self.outcomes])
        capacity = np.log(expected.capacity)
        if np.isnan(capacity):
            capacity = self._most_that_ran(expected.log_factor)
        kernels = [expected.kernels.get(name, 0.0) for name in self.names]
        self.start = np.concatenate([expected.log_factor, kernels, _NUISANCE[:, 0], [capacity]])
        kinds = [kind.sd for kind in KINDS.values()]
        held = scale * np.array([*kinds, *[STATED_SD] * len(self.names)])
        self.sd = np.concatenate([held, _NUISANCE[:, 1], [scale * CAPACITY_SD]])
        failed = np.isin(self.outcome, ("oom", "lost")).any()
        # outcomes that are all good, or all bad, lie far from no edge
        self.says_anything = (
            bool(len(self.peaks))
            or bool(failed and (self.outcome == "ok").any())
            or (scale < 1 and len(self.outcomes) > 0)
        )

    def _most_that_ran(self, log_factor: Array) -> float:
        """Log bytes of what was counted, among the trials without a capacity."""
        terms = self.rows.needed[self.outcomes][self.unstated & (self.outcome == "ok")]
        return float(_log_bytes(terms, log_factor, np.zeros(len(terms)))[0].max()) if len(terms) else 0.0

    def loss(self, at: Array) -> tuple[float, Array]:
        off = (at - self.start) / self.sd
        total, slope = 0.5 * float(off @ off), off / self.sd
        for part in (self._peaks, self._outcomes):
            value, change = part(at)
            total, slope = total + value, slope + change
        return total, slope

    def _need(self, at: Array, terms: Array, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """(m,) logs of bytes of some rows, and (m, parameters) their slopes."""
        kinds = len(KINDS)
        of = self.has_kernel[rows]
        log_bytes, share = _log_bytes(terms[rows], at[:kinds], of @ at[kinds : kinds + len(self.names)])
        kernels = share[:, [KERNEL_KIND]] * of
        return log_bytes, np.column_stack([share, kernels, np.zeros((len(rows), len(_NUISANCE) + 1))])

    def _peaks(self, at: Array) -> tuple[float, Array]:
        log_bytes, slope = self._need(at, self.rows.seen, self.peaks)
        off = (log_bytes - np.log(self.rows.peak[self.peaks])) / PEAK_SD
        spread = PEAK_DEGREES + off**2
        loss = (PEAK_DEGREES + 1) / 2 * np.log(spread / PEAK_DEGREES).sum()
        return float(loss), ((PEAK_DEGREES + 1) * off / spread / PEAK_SD) @ slope

    def _outcomes(self, at: Array) -> tuple[float, Array]:
        """As in :class:`~pretune.model.feasibility.MemoryEdge`, with the edge at the capacity."""
        log_bytes, slope = self._need(at, self.rows.needed, self.outcomes)
        width, (lost, unseen) = np.exp(at[-4]), expit(at[-3:-1])
        capacity = np.where(self.unstated, at[-1], np.log(self.rows.capacity[self.outcomes]))
        gap = (capacity - log_bytes) / width
        inside = expit(gap)
        fits = NOISE / 2 + (1 - NOISE) * inside
        by_gap = (1 - NOISE) * inside * (1 - inside)
        ok, oom = self.outcome == "ok", self.outcome == "oom"
        failed = lost * fits + unseen * (1 - fits)
        chance = np.where(ok, (1 - lost) * fits, np.where(oom, (1 - unseen) * (1 - fits), failed))
        by_fits = np.where(ok, 1 - lost, np.where(oom, unseen - 1, lost - unseen)) / chance
        change = -(by_fits * by_gap / -width) @ slope
        change[-1] = -(by_fits * by_gap / width)[self.unstated].sum()
        change[-4] = (by_fits * by_gap * gap).sum()
        change[-3] = -(np.where(ok, -fits, np.where(oom, 0.0, fits)) / chance).sum() * lost * (1 - lost)
        short = np.where(ok, 0.0, np.where(oom, fits - 1, 1 - fits))
        change[-2] = -(short / chance).sum() * unseen * (1 - unseen)
        return -float(np.log(chance).sum()), change
