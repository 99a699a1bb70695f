"""The covariance of theta alone, from the exact laws of `langevin_paper.check.recursions`, which are written from the equations."""

from __future__ import annotations

from langevin_paper.check import recursions


def stationary(transition, noise):
    """Solve S = A S A^T + B; fails when the recursion is unstable."""
    return recursions.Recursion(transition, noise).stationary()


def _of_theta(law):
    def covariance(precision, **settings):
        d = len(precision)
        return law(precision, **settings).stationary()[:d, :d]

    covariance.__doc__ = law.__doc__
    return covariance


langevin_covariance = _of_theta(recursions.overdamped)
momentum_covariance = _of_theta(recursions.momentum)
invariant_covariance = _of_theta(recursions.invariant)
hamiltonian_covariance = _of_theta(recursions.hamiltonian)
