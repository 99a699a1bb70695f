"""Exact draws from a posterior by Metropolis-adjusted Langevin steps: what approximate samplers are compared with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.random import Purpose, normal, streams
from langevin.targets.gradients import GradientFn

__all__ = ["Reference", "metropolis"]


class Reference(NamedTuple):
    """Draws of a posterior and their moments."""

    draws: Tensor  # (draws, dim)
    mean: Tensor
    covariance: Tensor
    error: float  # relative standard error of a variance, from the spread over chains; mean over the elements
    text: str


def metropolis(
    gradient_fn: GradientFn, start: Tensor, *, seed: int, num_chains: int, num_steps: int, burn: int, step: float
) -> Reference:
    """Run MALA (Roberts and Tweedie 1996) in the metric of the Laplace approximation, from draws of that.

    Args:
        gradient_fn: exact energies and gradients.
        start: one position (dim,), from which Newton's method finds the mode.
        seed: of the noise.
        num_chains: independent chains.
        num_steps: steps of each.
        burn: first steps thrown away; in this metric a chain forgets its start within a few.
        step: the step size in one dimension; it falls with dim^(1/3).
    """
    mode, hessian = _mode(gradient_fn, start.double())
    root = torch.linalg.cholesky(torch.linalg.inv(hessian)).float()
    dim, at = len(start), streams(Purpose.INIT, range(num_chains))
    position = mode.float() + normal(seed, at, 0, dim) @ root.T
    eps, kept, accepted = step / dim ** (1 / 3), [], 0.0
    energy, gradient = gradient_fn(position, 0)
    for k in range(1, num_steps + 1):
        noise, uniform = normal(seed, at, 2 * k, dim), torch.special.ndtr(normal(seed, at, 2 * k + 1, 1))[:, 0]
        forward = gradient @ root  # the gradient in whitened coordinates, theta = mode + root z
        moved = position + (-eps * forward + (2 * eps) ** 0.5 * noise) @ root.T
        there = gradient_fn(moved, 0)
        returned = (eps / 2) ** 0.5 * (forward + there.gradient @ root) - noise
        take = uniform.log() < energy - there.energy + 0.5 * (noise**2 - returned**2).sum(-1)
        position = torch.where(take[:, None], moved, position)
        energy, gradient = torch.where(take, there.energy, energy), torch.where(take[:, None], there.gradient, gradient)
        accepted += float(take.float().mean()) / num_steps
        if k > burn:
            kept.append(position)
    draws = torch.stack(kept, 1).double()  # (chain, draw, dim)
    mean, covariance = draws.mean((0, 1)), torch.cov(draws.flatten(0, 1).T)
    squares = ((draws - mean) ** 2).mean(1)
    error = float((squares.std(0) / num_chains**0.5 / covariance.diagonal()).mean())
    text = (
        f"MALA, {num_chains} chains of {num_steps} steps ({burn} thrown away), {100 * accepted:.0f} % accepted, "
        f"variances to {100 * error:.1f} % (one standard error)"
    )
    return Reference(draws[:, ::10].flatten(0, 1).float(), mean, covariance, error, text)


def _mode(gradient_fn: GradientFn, mode: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mode and the Hessian there: Newton's method, with central differences of the gradient."""
    steps = 1e-3 * torch.eye(len(mode), dtype=torch.float64)
    for _ in range(20):
        up, down = gradient_fn(torch.cat([mode + steps, mode - steps]).float(), 0).gradient.double().split(len(mode))
        hessian = (up - down) / 2e-3
        hessian = 0.5 * (hessian + hessian.T)
        mode = mode - torch.linalg.solve(hessian, gradient_fn(mode[None].float(), 0).gradient[0].double())
    return mode, hessian
