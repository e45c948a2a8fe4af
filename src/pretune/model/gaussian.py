"""A small Gaussian process on the residuals of one target, averaged over its scales."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pretune.model.base import Array

NOISE = 0.03  # of log throughput between two runs of one configuration
TRUST = (0.2, 0.7)  # how far a source's deviation may be wrong in size
SPEED = (0.3, 1.0)  # how far constants of the physics differ, in units of what is thinkable of them
REST = (0.03, 0.1, 0.3, 1.0)  # what neither sources nor components explain
SCALES = np.array(list(itertools.product(TRUST, SPEED, REST)))  # (g, 3)
NEGLIGIBLE = 0.02
SAME = 0.4  # distance at which an outcome of one configuration says little of another's


@dataclass(frozen=True)
class Terms:
    """What n rows are to the process.

    ``experts`` (n, s): weighted deviations of each source from their mean. ``shares`` (n, c):
    of each component in the step, which is how log time moves with that component's speed.
    ``points`` (n, d) and ``leaves`` (n, t): what makes two rows alike.
    """

    experts: Array
    shares: Array
    points: Array
    leaves: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, rows: NDArray[np.intp]) -> Terms:
        return Terms(self.experts[rows], self.shares[rows], self.points[rows], self.leaves[rows])

    def reweighted(self, said: Array, weight: Array) -> Terms:
        """The same rows, with what the experts ``said`` (n, s) taken by their ``weight`` (s,)."""
        return replace(self, experts=(said - (said @ weight)[:, None]) * np.sqrt(weight))


def points_only(points: Array) -> Terms:
    """Rows of which nothing is known but their knobs, ``points`` (n, d)."""
    nothing = np.zeros((len(points), 1))
    return Terms(nothing, nothing, points, np.zeros((len(points), 0), np.int32))


def one_rest(sd: float) -> Array:
    """(g,) log prior that leaves one scale of the rest, the nearest to ``sd``; for :func:`points_only`."""
    gap = np.abs(np.log(SCALES[:, 2]) - np.log(max(sd, 1e-9)))
    return np.where(np.arange(len(SCALES)) == np.argmin(gap), 0.0, -np.inf)


def likeness(a: Terms, b: Terms) -> Array:
    """(n, m) in 0..1: half by distance of knobs, half by the share of trees that send both to one leaf."""
    near = near_kernel(a.points, b.points)
    if not a.leaves.shape[1] or not len(b):
        return near
    same = np.stack([(b.leaves == row).mean(axis=1) for row in a.leaves])
    return np.asarray((near + same) / 2)


def near_kernel(a: Array, b: Array, length: float = 1.0) -> Array:
    """(n, m) squared-exponential of the distance between points (n, d) and (m, d)."""
    near: Array = np.exp(-square_distances(a, b) / (2 * length**2))
    return near


def square_distances(a: Array, b: Array) -> Array:
    """(n, m) between points (n, d) and (m, d)."""
    gap: Array = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.maximum(gap, 0)


class Process:
    """y = level + experts + component speeds + rest + noise, every part Gaussian with mean 0.

    Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, eq. 2.25, 2.26 and
    2.30; predictions are averaged over :data:`SCALES` by evidence times ``log_prior`` (g,).
    """

    def __init__(self, level_sd: float, log_prior: Array | None = None) -> None:
        self.level_sd = level_sd
        self.log_prior = np.zeros(len(SCALES)) if log_prior is None else log_prior

    def fit(self, terms: Terms, y: Array) -> Self:
        """n >= 0 residuals."""
        self.terms, self.y = terms, y
        parts = _parts(terms, terms) if len(y) else None
        fits = []
        for scales in SCALES:
            if parts is None:
                fits.append((None, np.zeros(0), 0.0))
                continue
            cov = self._mix(parts, scales) + NOISE**2 * np.eye(len(y))
            factor = cho_factor(cov, lower=True)
            alpha = cho_solve(factor, y)
            evidence = -0.5 * y @ alpha - np.log(np.diag(factor[0])).sum()
            fits.append((factor, alpha, float(evidence)))
        self.fits = fits
        self.evidence = np.array([evidence for _, _, evidence in fits])
        weight = np.exp(self.evidence + self.log_prior - (self.evidence + self.log_prior).max())
        weight = np.where(weight / weight.sum() < NEGLIGIBLE, 0.0, weight)
        self.weight = weight / weight.sum()
        return self

    def predict(self, terms: Terms) -> tuple[Array, Array]:
        """(m,) mean and (m,) standard deviation of a new trial, its noise included."""
        cross = _parts(self.terms, terms) if len(self.y) else None
        mean, square = np.zeros(len(terms)), np.zeros(len(terms))
        for weight, scales, (factor, alpha, _) in zip(self.weight, SCALES, self.fits, strict=True):
            if not weight:
                continue
            variance = self._own(terms, scales) + NOISE**2
            here = np.zeros(len(terms))
            if cross is not None:
                k = self._mix(cross, scales)
                here = alpha @ k
                variance = variance - (k * cho_solve(factor, k)).sum(axis=0)
            mean += weight * here
            square += weight * (np.maximum(variance, NOISE**2 / 2) + here**2)
        return mean, np.sqrt(np.maximum(square - mean**2, NOISE**2 / 2))

    def _mix(self, parts: tuple[Array, Array, Array], scales: Array) -> Array:
        experts, shares, alike = parts
        trust, speed, rest = scales**2
        mixed: Array = self.level_sd**2 + trust * experts + speed * shares + rest * alike
        return mixed

    def _own(self, terms: Terms, scales: Array) -> Array:
        trust, speed, rest = scales**2
        experts, shares = (terms.experts**2).sum(axis=1), (terms.shares**2).sum(axis=1)
        own: Array = self.level_sd**2 + trust * experts + speed * shares + rest
        return own


def _parts(a: Terms, b: Terms) -> tuple[Array, Array, Array]:
    return a.experts @ b.experts.T, a.shares @ b.shares.T, likeness(a, b)
