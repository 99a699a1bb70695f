"""Natural-gradient variational inference with a mixture of Gaussians (Lin, Khan and Schmidt 2019), the baseline of section 4.2.

With ``q = sum_c pi_c N(mu_c, S_c^-1)``, ``b = log q + U`` and ``N_c`` the c-th component, one step of size rho is

    S_c  <- S_c + rho E_{N_c}[Hessian of b]
    mu_c <- mu_c - rho S_c^-1 E_{N_c}[grad b]                  (the new S_c)
    log(pi_c / pi_K) <- log(pi_c / pi_K) - rho (E_{N_c}[b] - E_{N_K}[b])

The Hessian comes from gradients alone, by Stein's identity ``E[Hessian of b] = E[S (z - mu) grad b^T]``, made symmetric (their
section on the reparameterisation trick). At the optimum of a Gaussian target ``grad b`` is zero everywhere, so the estimates have
no noise there and the target is found exactly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, needs
from langevin.random import Purpose, normal, streams
from langevin.targets import Target

__all__ = ["MixtureState", "draw", "elbo", "log_density", "start", "step"]


class MixtureState(NamedTuple):
    """Some mixtures side by side, one for each run."""

    log_weights: Tensor  # (runs, components), normalised
    means: Tensor  # (runs, components, dim)
    precisions: Tensor  # S, (runs, components, dim, dim)
    guarded: int = 0  # steps of a component in which S would not have stayed positive definite


def start(runs: range, *, components: int, dim: int, variance: float, seed: int = 0) -> MixtureState:
    """Start with equal weights, means from N(0, variance I) and covariances I; every run at its own address."""
    check_integer("start", "components", components, 1)
    check_number("start", "variance", variance, "> 0", lambda v: v > 0)
    means = normal(seed, streams(Purpose.INIT, runs), 1, components * dim, dtype=torch.float64)
    shape = len(runs), components
    return MixtureState(
        torch.full(shape, -math.log(components), dtype=torch.float64),
        variance**0.5 * means.reshape(*shape, dim),
        torch.eye(dim, dtype=torch.float64).expand(*shape, dim, dim).clone(),
    )


def log_density(state: MixtureState, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log q, (runs, n), and its gradient, (runs, n, dim), at z (runs, n, dim)."""
    offset = z[:, :, None] - state.means[:, None]  # (runs, n, components, dim)
    pull = torch.einsum("rcij,rncj->rnci", state.precisions, offset)
    logs = state.log_weights + 0.5 * torch.logdet(state.precisions) - 0.5 * z.shape[-1] * math.log(2 * math.pi)
    logs = logs[:, None] - 0.5 * (offset * pull).sum(-1)
    return logs.logsumexp(-1), -(logs.softmax(-1)[..., None] * pull).sum(2)


def draw(state: MixtureState, noise: Tensor) -> Tensor:
    """Turn standard normals (runs, samples, components, dim) into draws of every component."""
    # S = L L^T, so L^-T noise has covariance S^-1.
    lower = torch.linalg.cholesky(state.precisions)
    moved = torch.linalg.solve_triangular(lower.mT, noise.permute(0, 2, 3, 1), upper=True)
    return state.means[:, None] + moved.permute(0, 3, 1, 2)


def step(state: MixtureState, target: Target, noise: Tensor, *, rate: float, error: Tensor | None = None) -> MixtureState:
    """Take one step; `noise` is standard normal, (runs, samples, components, dim).

    `error`, of the same shape, is added to the gradients of U: those of minibatches are known up to such errors only.
    """
    if noise.ndim != 4 or noise.shape[0] != len(state.means) or noise.shape[2:] != state.means.shape[1:]:
        raise needs("step", "noise", "shape (runs, samples, components, dim)", tuple(noise.shape))
    z = draw(state, noise)
    value, slope = _excess(state, target, z)
    slope = slope if error is None else slope + error
    pull = torch.einsum("rcij,rscj->rsci", state.precisions, z - state.means[:, None])
    hessian = torch.einsum("rsci,rscj->rcij", pull, slope) / noise.shape[1]
    change = 0.5 * rate * (hessian + hessian.mT)
    precisions = state.precisions + change
    bad = torch.linalg.cholesky_ex(precisions).info != 0
    if bad.any():
        # The retraction of Lin, Schmidt and Khan (2020) stays positive definite whatever the change; used only where needed.
        safe = precisions + 0.5 * change @ torch.linalg.solve(state.precisions, change)
        precisions = torch.where(bad[..., None, None], 0.5 * (safe + safe.mT), precisions)
    means = state.means - rate * torch.linalg.solve(precisions, slope.mean(1)[..., None])[..., 0]
    log_weights = (state.log_weights - rate * value.mean(1)).log_softmax(-1)
    return MixtureState(log_weights, means, precisions, state.guarded + int(bad.sum()))


def elbo(state: MixtureState, target: Target, noise: Tensor) -> Tensor:
    """Estimate ``-E_q[log q + U]``, one number for each run."""
    value, _ = _excess(state, target, draw(state, noise))
    return -(state.log_weights.exp() * value.mean(1)).sum(-1)


def _excess(state: MixtureState, target: Target, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return b, (runs, samples, components), and grad b at z, (runs, samples, components, dim)."""
    log_q, slope_q = log_density(state, z.flatten(1, 2))
    energy, slope = target.evaluate(z.flatten(0, 2))
    return log_q.reshape(z.shape[:-1]) + energy.reshape(z.shape[:-1]), slope_q.reshape(z.shape) + slope.reshape(z.shape)
