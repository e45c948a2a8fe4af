"""What the few trials of a newcomer (a model, a platform, an accelerator) show beyond the history."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pretune.model.base import Array
from pretune.model.gaussian import near_kernel

SPEED = (0.0, 0.3, 1.0)  # how far constants of the physics differ, in units of what is thinkable of them
REST = (0.03, 0.1, 0.3)  # what neither level nor constants explain
NOISE = (0.03, 0.1, 0.3)  # between runs of one configuration, and between those that look alike
SCALES = np.array(list(itertools.product(SPEED, REST, NOISE)))  # (g, 3)
SURPRISE = 2.5  # standard deviations; a trial that is further off met an accident
NEGLIGIBLE = 0.01
KNOWN, UNTRIED = -1, -2  # no newcomer; one that has no trials


@dataclass(frozen=True)
class Rows:
    """n rows as the process sees them.

    ``keys``: for each kind (of :func:`~pretune.model.surrogate.kinds_of`) the number (n,) of the newcomer
    whose row it is, :data:`KNOWN` or :data:`UNTRIED`. ``shares`` (n, c): how log time moves with the
    constants. ``points`` (n, d): distances.
    """

    keys: dict[str, NDArray[np.int64]]
    shares: Array
    points: Array

    def __len__(self) -> int:
        return len(self.points)

    def same(self, other: Rows) -> NDArray[np.bool_]:
        """(n, m) whether two rows are of one newcomer, in any way."""
        each = [(one[:, None] == other.keys[kind]) & (one[:, None] >= 0) for kind, one in self.keys.items()]
        return np.asarray(np.any(each, axis=0), dtype=bool)

    def __getitem__(self, at: NDArray[Any]) -> Rows:
        return Rows({kind: keys[at] for kind, keys in self.keys.items()}, self.shares[at], self.points[at])


class Newcomers:
    """A Gaussian process on the residuals of newcomers' trials, averaged over its scales.

    Two rows share, for each kind in which their keys are equal and a newcomer's, a level, the speeds of
    components, and what is alike in their configurations. Rasmussen and Williams 2006, eq. 2.25 and
    2.30; scales are weighed by evidence and by ``log_prior`` (g,), what they were worth before. A
    residual beyond ``limit`` met an accident, and counts as one at the limit.
    """

    def __init__(
        self, level_sds: dict[str, float], log_prior: Array | None = None, limit: float = np.inf
    ) -> None:
        self.level_sds, self.limit = level_sds, limit
        self.log_prior = np.zeros(len(SCALES)) if log_prior is None else log_prior

    def fit(self, rows: Rows, residual: Array) -> Self:
        """n >= 0 trials: ``residual`` (n,), log of measured over predicted throughput."""
        self.rows = rows
        self.fits: list[tuple[Any, Array]] = []
        self.evidence = np.zeros(len(SCALES))
        centre = self._centre(rows, residual)
        for i, scales in enumerate(SCALES if len(rows) else ()):
            own = np.sqrt(self._own(rows, scales) + scales[2] ** 2)
            limit = np.minimum(SURPRISE * own, self.limit)
            near = np.clip(residual, centre - limit, centre + limit)
            kernel = self._kernel(rows, rows, scales) + scales[2] ** 2 * np.eye(len(rows))
            factor = cho_factor(kernel, lower=True)
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
        weight = np.where(weight < NEGLIGIBLE * weight.sum(), 0.0, weight)
        self.weight = weight / weight.sum()
        return self

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """(m,) mean and (m,) standard deviation of the residual of a new trial, its noise included."""
        mean, square = np.zeros(len(rows)), np.zeros(len(rows))
        for i in np.flatnonzero(self.weight):
            here, variance = self._by(int(i), rows)
            mean += self.weight[i] * here
            square += self.weight[i] * (variance + here**2)
        return mean, np.sqrt(np.maximum(square - mean**2, min(NOISE) ** 2))

    def densities(self, rows: Rows, residual: Array) -> Array:
        """(g,) mean log density of m residuals under each of the scales, tails cut."""
        found = []
        for i in range(len(SCALES)):
            mean, variance = self._by(i, rows)
            far = np.minimum(np.abs(residual - mean) / np.sqrt(variance), 2 * SURPRISE)
            found.append(-(far**2 + np.log(variance)).mean() / 2)
        return np.array(found)

    def _by(self, i: int, rows: Rows) -> tuple[Array, Array]:
        """(m,) mean and (m,) variance under one of the scales."""
        noise = SCALES[i][2] ** 2
        variance = self._own(rows, SCALES[i]) + noise
        if not len(self.rows):
            return np.zeros(len(rows)), variance
        cross = self._kernel(self.rows, rows, SCALES[i])
        factor, alpha = self.fits[i]
        return alpha @ cross, np.maximum(variance - (cross * cho_solve(factor, cross)).sum(axis=0), noise)

    def _kernel(self, a: Rows, b: Rows, scales: Array) -> Array:
        speed, rest, _ = scales
        inner = speed**2 * (a.shares @ b.shares.T) + rest**2 * near_kernel(a.points, b.points)
        found = np.zeros((len(a), len(b)))
        for kind, sd in self.level_sds.items():
            one, other = a.keys[kind][:, None], b.keys[kind]
            found += ((one == other) & (one >= 0)) * (sd**2 + self._share(kind) * inner)
        return found

    def _own(self, rows: Rows, scales: Array) -> Array:
        speed, rest, _ = scales
        inner = speed**2 * (rows.shares**2).sum(axis=1) + rest**2
        found = np.zeros(len(rows))
        for kind, sd in self.level_sds.items():
            found += (rows.keys[kind] != KNOWN) * (sd**2 + self._share(kind) * inner)
        return found

    def _share(self, kind: str) -> float:
        """Of what configurations differ in, the part that goes with one kind."""
        return float(self.level_sds[kind] ** 2 / sum(sd**2 for sd in self.level_sds.values()))
