"""Exact laws on N(0, P^-1): each sampler is a linear recursion z' = A z + noise of covariance B.

The matrices are written from the equations, not from the code of the kernels, so that the two can be held against each other.
z = (theta, whatever the kernel remembers, in its order); the gradient's own noise has covariance s^2 I and enters every place where
the gradient enters.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from langevin.checks import needs

__all__ = ["Matrix", "Recursion", "baoab", "hamiltonian", "invariant", "momentum", "overdamped", "strides", "velocity_law"]

Matrix = NDArray[np.float64]


class Recursion(NamedTuple):
    """z' = A z + a normal of covariance B."""

    transition: Matrix
    noise: Matrix

    @property
    def radius(self) -> float:
        """The largest modulus of an eigenvalue of A: what a step leaves of a deviation, in the end."""
        return float(np.abs(np.linalg.eigvals(self.transition)).max())

    def stationary(self) -> Matrix:
        """Solve S = A S A^T + B, the covariance of z; fails where the recursion is unstable."""
        if not self.radius < 1:
            raise needs("Recursion", "transition", "a spectral radius below 1: a stable step", self.radius)
        from scipy.linalg import solve_discrete_lyapunov  # type: ignore[import-untyped] # half a second to import

        return np.asarray(solve_discrete_lyapunov(self.transition, self.noise))

    def steps_to_forget(self, share: float) -> int:
        """Return after how many steps only `share` is left of where the variance started, in the slowest direction."""
        return math.ceil(0.5 * math.log(share) / math.log(self.radius))


def overdamped(precision: Matrix, *, eps: float, tau: float = 1.0, s: float = 0.0, metric: Any = None) -> Recursion:
    """SGLD in a metric: theta' = theta - eps G (P theta + s e) + sqrt(2 eps tau) G^(1/2) eta."""
    d = len(precision)
    g = np.eye(d) if metric is None else metric
    return Recursion(np.eye(d) - eps * g @ precision, 2 * eps * tau * g + (eps * s) ** 2 * g @ g.T)


def momentum(
    precision: Matrix, *, eps: float, a: float, beta: float, tau: float = 1.0, s: float = 0.0, scale: Any = None
) -> Recursion:
    """Published: theta' = theta - eps (P theta + s e + a C m) + sqrt(2 eps tau) eta, m' = beta m + (1 - beta) (P theta + s e).

    C is the identity for MSGLD, and (V + lambda)^(-1/2) for ASGLD whose V stands still.
    """
    d = len(precision)
    eye = np.eye(d)
    c = eye if scale is None else scale
    transition = np.block([[eye - eps * precision, -eps * a * c], [(1 - beta) * precision, beta * eye]])
    into = np.vstack([-eps * s * eye, (1 - beta) * s * eye])
    noise = into @ into.T
    noise[:d, :d] += 2 * eps * tau * eye
    return Recursion(transition, noise)


def invariant(
    precision: Matrix,
    *,
    eps: float,
    a: float,
    beta: float,
    tau: float = 1.0,
    s: float = 0.0,
    scale: Any = None,
    friction: Any = None,
    noise_factor: float = 1.0,
    published_order: bool = False,
) -> Recursion:
    """B A O A with two velocities, written as its four stages; theta is read where the gradient is taken.

    v is the velocity that lasts, e the one of the last step (its noise eta). B: v -= h C^(1/2) g and e -= sqrt(2 eps) g; A: theta
    moves half way by both; O: v' = beta v + sqrt(tau (1 - beta^2)) xi and e' = sqrt(tau) eta; A again. C is the identity for MSGLD
    and (V + lambda)^(-1/2) for ASGLD. With a friction D the kick takes g + D p, p the velocity along it half way through (section 6
    of docs/theory.md). `noise_factor` multiplies xi; the published order moves theta by the velocity before it is kicked by g.
    """
    d = len(precision)
    inputs = np.eye(6 * d).reshape(6, d, 6 * d)  # theta, v, e, g, xi, eta as functions of themselves
    theta, v, e, g, xi, eta = inputs
    h, k = strides(d, eps, a, beta, scale)
    if friction is not None:
        g = g + friction @ (h @ v + k * e - 0.5 * (h @ h + k * k * np.eye(d)) @ g)
    before = v
    v, e = v - h @ g, e - k * g
    theta = theta + 0.5 * (h @ (before if published_order else v) + k * e)
    v, e = beta * v + noise_factor * np.sqrt(tau * (1 - beta**2)) * xi, np.sqrt(tau) * eta
    theta = theta + 0.5 * (h @ (before if published_order else v) + k * e)
    rows = np.vstack([theta, v, e])
    state, gradient, noises = rows[:, : 3 * d], rows[:, 3 * d : 4 * d], rows[:, 4 * d :]
    transition = state + gradient @ np.hstack([precision, np.zeros((d, 2 * d))])
    return Recursion(transition, noises @ noises.T + s**2 * gradient @ gradient.T)


def hamiltonian(
    precision: Matrix, *, eps: float, beta: float, tau: float = 1.0, s: float = 0.0, scale: Any = None, taken: float = 0.0
) -> Recursion:
    """SGHMC: v' = beta v - eps C (P theta + s e) + a normal of covariance 2 tau eps (1 - beta) C - taken^2, theta' = theta + v'.

    C is the identity for SGHMC; the scale-adapted one takes out eps^2 for the gradient's own noise.
    """
    d = len(precision)
    eye = np.eye(d)
    c = eye if scale is None else scale
    transition = np.block([[eye - eps * c @ precision, beta * eye], [-eps * c @ precision, beta * eye]])
    shared = 2 * tau * eps * (1 - beta) * c - taken**2 * eye + (eps * s) ** 2 * c @ c.T
    return Recursion(transition, np.block([[shared, shared], [shared, shared]]))


def baoab(
    precision: Matrix, *, eps: float, beta: float, tau: float = 1.0, s: float = 0.0, scale: Any = None, noise_factor: float = 1.0
) -> Recursion:
    """B A O A with one velocity of time step h, h^2 = 2 eps / (1 + beta), in the scale C: its stages as matrices on (theta, v)."""
    d = len(precision)
    eye, zero = np.eye(d), np.zeros((d, d))
    h = strides(d, eps, 1 / (1 - beta), beta, scale)[0]  # h^2 = 2 a eps (1 - beta) / (1 + beta) there
    kick = np.block([[eye, zero], [-h @ precision, eye]])
    half = np.block([[eye, 0.5 * h], [zero, eye]])
    rub = np.block([[eye, zero], [zero, beta * eye]])
    into, heat = half @ rub @ half @ np.vstack([zero, -s * h]), half @ np.vstack([zero, eye])
    noise = into @ into.T + noise_factor**2 * tau * (1 - beta**2) * heat @ heat.T
    return Recursion(half @ rub @ half @ kick, noise)


def velocity_law(precision: Matrix, *, eps: float, a: float, beta: float, tau: float = 1.0, scale: Any = None) -> Matrix:
    """Return the law of (theta, v, e) of the invariant form with exact gradients, in closed form (section 5 of docs/theory.md).

    Before the last half move A the position has covariance ``tau (P^-1 - (h^2 C + 2 eps) / 4)``, apart from the velocities, which
    are N(0, tau). The half move adds ``(h C^(1/2) v + sqrt(2 eps) e) / 2``: where it is recorded theta has the target's law, and
    the covariances ``tau h C^(1/2) / 2`` and ``tau sqrt(2 eps) / 2`` with its velocities.
    """
    d = len(precision)
    eye, zero = np.eye(d), np.zeros((d, d))
    h, k = strides(d, eps, a, beta, scale)
    return tau * np.block([[np.linalg.inv(precision), h / 2, k * eye / 2], [h.T / 2, eye, zero], [k * eye / 2, zero, eye]])


def strides(d: int, eps: float, a: float, beta: float, scale: Any) -> tuple[Matrix, float]:
    """Return ``h C^(1/2)`` with ``h^2 = 2 a eps (1 - beta) / (1 + beta)``, and ``sqrt(2 eps)``."""
    values, vectors = np.linalg.eigh(np.eye(d) if scale is None else scale)
    root = (vectors * np.sqrt(values)) @ vectors.T
    return np.sqrt(2 * a * eps * (1 - beta) / (1 + beta)) * root, math.sqrt(2 * eps)
