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


def invariant_covariance(precision, *, eps, a, beta, tau=1.0, s=0.0, noise_factor=1.0):
    """m' = beta m + (1 - beta) (g + sqrt(2 tau / (a eps)) xi), theta' = theta - eps (g + a m') + sqrt(2 eps tau) eta.

    g = P theta + s e; `noise_factor` multiplies xi.
    """
    d = len(precision)
    eye = np.eye(d)
    momentum = np.hstack([(1 - beta) * precision, beta * eye])  # m' as a function of (theta, m)
    transition = np.vstack([np.hstack([eye - eps * precision, 0 * eye]) - eps * a * momentum, momentum])
    own = noise_factor * (1 - beta) * np.sqrt(2 * tau / (a * eps)) * eye
    from_gradient = np.vstack([-eps * s * (1 + a * (1 - beta)) * eye, (1 - beta) * s * eye])
    from_own = np.vstack([-eps * a * own, own])
    noise = from_gradient @ from_gradient.T + from_own @ from_own.T
    noise[:d, :d] += 2 * eps * tau * eye
    return stationary(transition, noise)[:d, :d]


def hamiltonian_covariance(precision, *, eps, beta, tau=1.0, s=0.0):
    """v' = beta v - eps (P theta + s e) + sqrt(2 tau eps (1 - beta)) eta, theta' = theta + v'."""
    d = len(precision)
    eye = np.eye(d)
    transition = np.block([[eye - eps * precision, beta * eye], [-eps * precision, beta * eye]])
    shared = (2 * tau * eps * (1 - beta) + (eps * s) ** 2) * eye
    return stationary(transition, np.block([[shared, shared], [shared, shared]]))[:d, :d]
