"""Exact stationary laws on N(0, P^-1): each sampler is a linear recursion z' = A z + noise of covariance B.

The matrices are written from the paper's equations, not from the library's code. z = (theta, whatever is remembered); the noise of
the gradient has covariance s^2 I and enters every place where the gradient enters.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_discrete_lyapunov


def stationary(transition, noise):
    """Solve S = A S A^T + B; fails when the recursion is unstable."""
    radius = np.abs(np.linalg.eigvals(transition)).max()
    assert radius < 1, f"spectral radius {radius}"
    return solve_discrete_lyapunov(transition, noise)


def langevin_covariance(precision, *, eps, tau=1.0, s=0.0, metric=None):
    """theta' = theta - eps G (P theta + s e) + sqrt(2 eps tau) G^(1/2) eta."""
    d = len(precision)
    g = np.eye(d) if metric is None else metric
    return stationary(np.eye(d) - eps * g @ precision, 2 * eps * tau * g + (eps * s) ** 2 * g @ g.T)


def momentum_covariance(precision, *, eps, a, beta, tau=1.0, s=0.0, scale=None):
    """theta' = theta - eps (P theta + s e + a C m) + sqrt(2 eps tau) eta, m' = beta m + (1 - beta) (P theta + s e).

    C is the identity for MSGLD, and diag(1 / sqrt(V + lambda)) for ASGLD whose V stands still.
    """
    d = len(precision)
    eye = np.eye(d)
    c = eye if scale is None else scale
    transition = np.block([[eye - eps * precision, -eps * a * c], [(1 - beta) * precision, beta * eye]])
    into = np.vstack([-eps * s * eye, (1 - beta) * s * eye])
    noise = into @ into.T
    noise[:d, :d] += 2 * eps * tau * eye
    return stationary(transition, noise)[:d, :d]


def invariant_covariance(precision, *, eps, a, beta, tau=1.0, s=0.0, scale=None, noise_factor=1.0, published_order=False):
    """B A O A with two velocities, written as its four stages; theta is read where the gradient is taken.

    v is the velocity that lasts, e the one of the last step (its noise eta). B: v -= h C^(1/2) g and e -= sqrt(2 eps) g; A: theta
    moves half way by both; O: v' = beta v + sqrt(tau (1 - beta^2)) xi and e' = sqrt(tau) eta; A again. C is the identity for MSGLD
    and diag(1 / sqrt(V + lambda)) for ASGLD. `noise_factor` multiplies xi; the published order moves theta by the velocity before
    it is kicked by g.
    """
    d = len(precision)
    root = np.eye(d) if scale is None else np.sqrt(scale)
    inputs = np.eye(6 * d).reshape(6, d, 6 * d)  # theta, v, e, g, xi, eta as functions of themselves
    theta, v, e, g, xi, eta = inputs
    h, k = np.sqrt(2 * a * eps * (1 - beta) / (1 + beta)) * root, np.sqrt(2 * eps)
    before = v
    v, e = v - h @ g, e - k * g
    theta = theta + 0.5 * (h @ (before if published_order else v) + k * e)
    v, e = beta * v + noise_factor * np.sqrt(tau * (1 - beta**2)) * xi, np.sqrt(tau) * eta
    theta = theta + 0.5 * (h @ (before if published_order else v) + k * e)
    rows = np.vstack([theta, v, e])
    state, gradient, noises = rows[:, : 3 * d], rows[:, 3 * d : 4 * d], rows[:, 4 * d :]
    transition = state + gradient @ np.hstack([precision, np.zeros((d, 2 * d))])
    return stationary(transition, noises @ noises.T + s**2 * gradient @ gradient.T)[:d, :d]


def hamiltonian_covariance(precision, *, eps, beta, tau=1.0, s=0.0):
    """v' = beta v - eps (P theta + s e) + sqrt(2 tau eps (1 - beta)) eta, theta' = theta + v'."""
    d = len(precision)
    eye = np.eye(d)
    transition = np.block([[eye - eps * precision, beta * eye], [-eps * precision, beta * eye]])
    shared = (2 * tau * eps * (1 - beta) + (eps * s) ** 2) * eye
    return stationary(transition, np.block([[shared, shared], [shared, shared]]))[:d, :d]
