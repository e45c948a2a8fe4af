"""The constants of the physics, learned from trials: the most probable ones under what is believed before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from pretune.model.base import Array
from pretune.model.physics.step import MEAN, SD, Parts, step_time

LEVEL_SD = 0.15  # of log step time between stacks: definitions of throughput, clocks, versions
NOISE = (0.05, 0.5)  # least and most of log step time about the formula
EVIDENCE = 60.0  # trials that one stack is worth at most: their errors are the formula's, and alike
MAX_ROWS = 3000  # of one stack, which say as much as all
MAX_STEPS = 60
STACKS, FEW = 30, 5  # stacks with a level of their own, and the trials that each needs; others share one


def calibrated(parts: Parts, log_time: Array, stacks: NDArray[np.int64]) -> tuple[Array, Array]:
    """(c,) constants, given n >= 0 measured steps, natural logs of seconds, of numbered stacks; and (c, c) a
    root of their covariance, which is what the trials left open.

    Maximum a posteriori: a normal prior on every constant (:data:`~pretune.model.physics.step.CONSTANTS`)
    and on a level of each stack, and a soft-L1 loss, so that runs which met an accident do not
    bend the formula. The noise is the spread that a first fit leaves.
    """
    if not len(log_time):
        return MEAN.copy(), np.diag(SD)
    counts = np.bincount(stacks)
    largest = [stack for stack in np.argsort(counts, kind="stable")[::-1][:STACKS] if counts[stack] >= FEW]
    number = np.full(len(counts), len(largest))
    number[np.array(largest, dtype=np.int64)] = np.arange(len(largest))
    stacks = np.unique(number[stacks], return_inverse=True)[1]
    counts = np.bincount(stacks)
    weight = np.sqrt(np.minimum(1.0, EVIDENCE / counts[stacks]))
    level = np.eye(len(counts))[stacks]

    def errors(x: Array, noise: float) -> tuple[Array, Array]:
        found, slope = step_time(parts, x[: len(MEAN)])
        error = (log_time - found - level @ x[len(MEAN) :]) / noise
        return error, np.column_stack([slope, level]) / -noise

    def residual(x: Array, noise: float) -> Array:
        error, _ = errors(x, noise)
        return np.concatenate([weight * _soft(error), (x - before) / spread])

    def jacobian(x: Array, noise: float) -> Array:
        error, slope = errors(x, noise)
        return np.vstack([(weight * _soft_slope(error))[:, None] * slope, np.diag(1 / spread)])

    before = np.concatenate([MEAN, np.zeros(len(counts))])
    spread = np.concatenate([SD, np.full(len(counts), LEVEL_SD)])
    x, noise = before, 0.2
    for _ in range(2):
        x = least_squares(residual, x, jacobian, max_nfev=MAX_STEPS, args=(noise,)).x
        error = errors(x, 1.0)[0]
        noise = float(np.clip(np.median(np.abs(error)) / 0.6745, *NOISE))
    found = least_squares(residual, x, jacobian, max_nfev=MAX_STEPS, args=(noise,))
    # Laplace's approximation (MacKay 2003, Information Theory, chapter 27)
    covariance = np.linalg.inv(found.jac.T @ found.jac)[: len(MEAN), : len(MEAN)]
    return np.asarray(found.x[: len(MEAN)], dtype=np.float64), np.linalg.cholesky(covariance)


def _soft(error: Array) -> Array:
    """Its square is twice the soft-L1 loss, sqrt(1 + e^2) - 1."""
    return np.asarray(np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1)))


def _soft_slope(error: Array) -> Array:
    root = np.sqrt(1 + error**2)
    soft = np.maximum(np.abs(_soft(error)), 1e-9)
    return np.where(np.abs(error) < 1e-6, 1.0, np.abs(error) / root / soft)
