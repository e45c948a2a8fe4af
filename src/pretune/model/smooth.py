"""A Gaussian process with a length per knob: what a few dozen rows of a source say between those rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from pretune.model.base import Array
from pretune.model.gaussian import square_distances

MAX_ROWS = 250  # learned from; the fit is cubic in them
MIN_ROWS = 8
STEPS = 40
LENGTH_SD = np.sqrt(3.0)  # of the prior on log lengths
BOUNDS = (np.log(0.1), np.log(100.0)), (np.log(1e-3), np.log(1.0))  # of lengths, of the noise's share


class Smooth:
    """Matern-5/2 process of n rows, points as :meth:`Encoder.points` makes them.

    Rasmussen and Williams 2006, eq. 4.17, 5.8, 5.9 and 5.12. Lengths by evidence times a log-normal
    prior with its mode at 1, as wide as that of Hvarfner, Hellsten and Nardi 2024 (arXiv:2402.02229).
    """

    def fit(self, points: Array, y: Array, seed: int) -> Self:
        """``points`` (n, d), ``y`` (n,); n >= MIN_ROWS rows with two values at least."""
        keep = np.random.default_rng(seed).permutation(len(y))[:MAX_ROWS]
        points, y = points[keep], y[keep]
        moves = np.ptp(points, axis=0) > 0
        self.level, self.scale = float(y.mean()), max(float(y.std()), 1e-6)
        gaps = (points[:, None, moves] - points[None, :, moves]) ** 2
        d = int(moves.sum())
        start = np.array([*[0.0] * d, np.log(0.05)])
        z = (y - self.level) / self.scale
        found = minimize(
            _loss,
            start,
            (gaps, z),
            jac=True,
            method="L-BFGS-B",
            bounds=[*[BOUNDS[0]] * d, BOUNDS[1]],
            options={"maxiter": STEPS},
        )
        self.lengths = np.full(points.shape[1], np.inf)
        self.lengths[moves] = np.exp(found.x[:-1])
        self.noise = float(np.exp(found.x[-1]))
        self.points, self.z = points, z
        return self._solved()

    def _solved(self) -> Self:
        cov = (1 - self.noise) * matern(self.points / self.lengths, self.points / self.lengths)
        factor = cho_factor(cov + self.noise * np.eye(len(self.z)), lower=True)
        self.alpha = cho_solve(factor, self.z)
        own = np.diag(cho_solve(factor, np.eye(len(self.z))))
        self.left_out_mse = float(np.mean((self.alpha / own) ** 2)) * self.scale**2
        return self

    def predict(self, points: Array) -> Array:
        """(m,) the mean at ``points`` (m, d)."""
        cross = (1 - self.noise) * matern(points / self.lengths, self.points / self.lengths)
        said: Array = self.level + self.scale * (cross @ self.alpha)
        return said

    # -- keeping --------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        lengths = [None if np.isinf(each) else each for each in self.lengths.tolist()]
        return {
            "points": self.points.tolist(),
            "z": self.z.tolist(),
            "lengths": lengths,
            "noise": self.noise,
            "level": self.level,
            "scale": self.scale,
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        found = cls()
        found.points, found.z = np.array(state["points"], dtype=np.float64), np.array(state["z"])
        found.lengths = np.array([np.inf if each is None else each for each in state["lengths"]])
        found.noise, found.level, found.scale = state["noise"], state["level"], state["scale"]
        return found._solved()


def matern(a: Array, b: Array) -> Array:
    """(n, m) in 0..1 between points (n, d) and (m, d) at unit length: Matern 5/2."""
    return _matern(square_distances(a, b))[0]


def _matern(square: Array) -> tuple[Array, Array]:
    """Of squared distances: the kernel, and its derivative by them."""
    r = np.sqrt(5 * square)
    decay = np.exp(-r)
    return (1 + r + r**2 / 3) * decay, -5 / 6 * (1 + r) * decay


def _loss(theta: Array, gaps: Array, z: Array) -> tuple[float, Array]:
    """Minus log evidence and prior, and its gradient; ``gaps`` (n, n, d) squared differences."""
    inverse, noise = np.exp(-2 * theta[:-1]), np.exp(theta[-1])
    alike, slope = _matern(gaps @ inverse)
    eye = np.eye(len(z))
    factor = cho_factor((1 - noise) * alike + (noise + 1e-8) * eye, lower=True)
    alpha = cho_solve(factor, z)
    shift = theta[:-1] / LENGTH_SD**2
    loss = 0.5 * z @ alpha + np.log(np.diag(factor[0])).sum() + 0.5 * theta[:-1] @ shift
    pull = 0.5 * (cho_solve(factor, eye) - np.outer(alpha, alpha))
    by_square = (1 - noise) * pull * slope
    by_length = np.tensordot(by_square, gaps, axes=2) * -2 * inverse + shift
    by_noise = noise * (pull * (eye - alike)).sum()
    return float(loss), np.array([*by_length, by_noise])
