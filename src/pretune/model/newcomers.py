"""What the few trials of a newcomer (a model, a platform, an accelerator) show beyond the history."""

from __future__ import annotations

import itertools
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pretune.model.base import Array
from pretune.model.gaussian import near_kernel

LEVEL = (0.1, 0.3, 1.0)  # how far levels differ, in units of what differs between keys held out one at a time
SPEED = (0.0, 0.3, 1.0)  # how far constants of the physics differ, in units of what is thinkable of them
REST = (0.03, 0.1, 0.3)  # what neither level nor constants explain
NOISE = (0.03, 0.1, 0.3, 0.6)  # between runs of one configuration, and between those that look alike
SCALES = np.array(list(itertools.product(LEVEL, SPEED, REST, NOISE)))  # (g, 4)
SURPRISE = 2.5  # standard deviations; a trial that is further off met an accident
NEGLIGIBLE = 0.01  # of the weight of the likeliest scales
KNOWN, UNTRIED = -1, -2  # no newcomer; one that has no trials


@dataclass(frozen=True)
class Rows:
    """n rows as the process sees them.

    ``keys``: for each kind (of :func:`~pretune.model.surrogate.kinds_of`) the number (n,) of the newcomer
    whose row it is, :data:`KNOWN` or :data:`UNTRIED`. ``shares`` (n, c): how log time moves with the
    constants. ``doubts`` (n, d): how it moves with what the history left open of them. ``points`` (n, p):
    distances.
    """

    keys: dict[str, NDArray[np.int64]]
    shares: Array
    doubts: Array
    points: Array

    def __len__(self) -> int:
        return len(self.points)

    def same(self, other: Rows) -> NDArray[np.bool_]:
        """(n, m) whether two rows are of one newcomer, in any way."""
        each = [(one[:, None] == other.keys[kind]) & (one[:, None] >= 0) for kind, one in self.keys.items()]
        return np.asarray(np.any(each, axis=0), dtype=bool)

    def __getitem__(self, at: NDArray[Any]) -> Rows:
        keys = {kind: keys[at] for kind, keys in self.keys.items()}
        return Rows(keys, self.shares[at], self.doubts[at], self.points[at])


class Newcomers:
    """A Gaussian process on the residuals of newcomers' trials, averaged over its scales.

    Two rows share, for each kind in which their keys are equal and a newcomer's, a level, the speeds of
    components, and what is alike in their configurations; and all share what the history left open of the
    physics, such as a link that none of its trials crossed. A kind's levels differ by ``level_sds``, if it is
    one of those ``measured`` by as much as the scales say. Rasmussen and Williams 2006, eq. 2.25 and
    2.30; scales are weighed by evidence and by ``log_prior`` (g,), what they were worth before. A
    residual beyond ``limit`` met an accident, and counts as one at the limit.
    """

    def __init__(
        self,
        level_sds: dict[str, float],
        measured: Set[str] = frozenset(),
        log_prior: Array | None = None,
        limit: float = np.inf,
    ) -> None:
        self.level_sds, self.measured, self.limit = level_sds, measured, limit
        self.log_prior = np.zeros(len(SCALES)) if log_prior is None else log_prior

    def fit(self, rows: Rows, residual: Array) -> Self:
        """n >= 0 trials: ``residual`` (n,), log of measured over predicted throughput."""
        self.rows = rows
        self.fits: list[tuple[Any, Array]] = []
        self.evidence = np.zeros(len(SCALES))
        if not len(rows):
            return self.reweigh(self.log_prior)
        centre, parts, own = self._centre(rows, residual), self._parts(rows, rows), self._own(rows)
        for i, scales in enumerate(SCALES):
            limit = np.minimum(SURPRISE * np.sqrt(_mixed(own, scales) + scales[3] ** 2), self.limit)
            near = np.clip(residual, centre - limit, centre + limit)
            factor = cho_factor(_mixed(parts, scales) + scales[3] ** 2 * np.eye(len(rows)), lower=True)
            alpha = cho_solve(factor, near)
            # what was clipped counts with the tails of a Laplace distribution
            beyond = SURPRISE**2 * (np.abs(residual - near) / limit).sum()
            self.evidence[i] = -0.5 * near @ alpha - np.log(np.diag(factor[0])).sum() - beyond
            self.fits.append((factor, alpha))
        return self.reweigh(self.log_prior)

    def _centre(self, rows: Rows, residual: Array) -> Array:
        """(n,) the median of each trial's own newcomer, where three or more agree; else 0."""
        found = np.zeros(len(rows))
        for i, alike in enumerate(rows.same(rows)):
            middle = np.median(residual[alike])
            spread = np.median(np.abs(residual[alike] - middle))
            if alike.sum() >= 3 and SURPRISE * spread <= self.limit:
                found[i] = middle
        return found

    def reweigh(self, log_prior: Array) -> Self:
        """The same trials under another belief in the scales, (g,)."""
        posterior = self.evidence + log_prior
        weight = np.exp(posterior - posterior.max())
        weight = np.where(weight < NEGLIGIBLE, 0.0, weight)
        self.weight = weight / weight.sum()
        return self

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """(m,) mean and (m,) standard deviation of the residual of a new trial, its noise included."""
        used = np.flatnonzero(self.weight)
        mean, variance = self._by(used, rows)
        found = self.weight[used] @ mean
        square = self.weight[used] @ (variance + mean**2)
        return found, np.sqrt(np.maximum(square - found**2, min(NOISE) ** 2))

    def densities(self, rows: Rows, residual: Array) -> Array:
        """(g,) mean log density of m residuals under each of the scales, tails cut."""
        mean, variance = self._by(np.arange(len(SCALES)), rows)
        far = np.minimum(np.abs(residual - mean) / np.sqrt(variance), 2 * SURPRISE)
        return np.asarray(-(far**2 + np.log(variance)).mean(axis=1) / 2)

    def _by(self, used: NDArray[np.intp], rows: Rows) -> tuple[Array, Array]:
        """(u, m) means and (u, m) variances under those of the scales that are ``used`` (u,)."""
        mean, variance = np.zeros((2, len(used), len(rows)))
        own, parts = self._own(rows), self._parts(self.rows, rows) if len(self.rows) else None
        for u, i in enumerate(used):
            noise = SCALES[i][3] ** 2
            variance[u] = _mixed(own, SCALES[i]) + noise
            if parts is not None:
                (factor, alpha), cross = self.fits[i], _mixed(parts, SCALES[i])
                mean[u] = alpha @ cross
                told = (cross * cho_solve(factor, cross)).sum(axis=0)
                variance[u] = np.maximum(variance[u] - told, noise)
        return mean, variance

    def _parts(self, a: Rows, b: Rows) -> Array:
        """(4, n, m) what two rows share whatever the scales, and by level, speeds and rest."""
        whole, level, alike = np.zeros((3, len(a), len(b)))
        for kind, sd in self.level_sds.items():
            one, other = a.keys[kind][:, None], b.keys[kind]
            same = (one == other) & (one >= 0)
            (level if kind in self.measured else whole)[same] += sd**2
            alike[same] += self._share(kind)
        whole += a.doubts @ b.doubts.T
        return np.stack(
            [whole, level, alike * (a.shares @ b.shares.T), alike * near_kernel(a.points, b.points)]
        )

    def _own(self, rows: Rows) -> Array:
        """(4, n) the same of each row with itself, that of a newcomer without trials too."""
        whole, level, alike = np.zeros((3, len(rows)))
        for kind, sd in self.level_sds.items():
            new = rows.keys[kind] != KNOWN
            (level if kind in self.measured else whole)[new] += sd**2
            alike[new] += self._share(kind)
        whole += (rows.doubts**2).sum(axis=1)
        return np.stack([whole, level, alike * (rows.shares**2).sum(axis=1), alike])

    def _share(self, kind: str) -> float:
        """Of what configurations differ in, the part that goes with one kind."""
        return float(self.level_sds[kind] ** 2 / sum(sd**2 for sd in self.level_sds.values()))


def _mixed(parts: Array, scales: Array) -> Array:
    """(...) the covariance that ``parts`` (4, ...) make under one of the scales (4,), without noise."""
    level, speed, rest, _ = scales**2
    mixed: Array = parts[0] + level * parts[1] + speed * parts[2] + rest * parts[3]
    return mixed
