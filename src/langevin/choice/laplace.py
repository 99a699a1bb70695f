"""The marginal likelihood of a model by Laplace's method, at a mode of its posterior (MacKay 1992)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.choice.curvature import curvature
from langevin.gradients import full
from langevin.targets import Posterior
from langevin.tuning import descend

__all__ = ["Fit", "fit_at", "laplace_fit"]

_TOLERANCE = 1e-3  # of the energy, where a descent ends


@dataclass(frozen=True)
class Fit:
    """A Gaussian around a mode, and how good it is."""

    log_evidences: Tensor  # estimates whose mean is the best one; one alone where the log determinant is exact
    effective: float  # parameters that the data determine: the trace of A / (1 + A)
    left: float  # what one more Newton step would lower the energy by: 0 at a mode
    excess: float  # energy of draws from the fit above the mode's, over dim / 2, which a quadratic energy has
    evaluations: int  # gradients of all data that the descent took


def laplace_fit(posterior: Posterior, x: Tensor, y: Tensor, starts: Tensor, num_steps: int, seed: int) -> Fit | None:
    """Go downhill from every start, and fit a Gaussian at the lowest mode; see `fit_at`.

    Args:
        posterior: with its prior.
        x: inputs.
        y: targets.
        starts: positions (starts, dim).
        num_steps: evaluations of each descent at most.
        seed: of the vectors by which the log determinant of a large matrix is estimated.
    """
    descent = descend(full(posterior, (x, y)), starts, num_steps, _TOLERANCE)
    mode = descent.position[int(descent.energy.nan_to_num(torch.inf).argmin())]
    return fit_at(posterior, x, y, mode, seed, descent.evaluations)


def fit_at(posterior: Posterior, x: Tensor, y: Tensor, mode: Tensor, seed: int, evaluations: int = 0) -> Fit | None:
    """Fit a Gaussian at a place (dim,).

    ``log Z = -U + left + (d / 2) log 2 pi - log det(D) / 2 - log det(I + A) / 2``, with ``left = g^T (D + G)^-1 g / 2`` for a
    descent that ended early: exact for any end where the energy is quadratic.

    Returns:
        The fit; None where the prior's curvature is not positive at the mode, as a Laplace prior's, or nothing finite was found.
    """
    gradient_fn = full(posterior, (x, y))
    energy, gradient = (value[0].double() for value in gradient_fn(mode[None], 0))
    prior_curvature = torch.func.grad(lambda theta: posterior.prior.gradient(theta).sum())(mode).double()  # elementwise
    if not (torch.isfinite(energy) and torch.isfinite(gradient).all() and (prior_curvature > 0).all()):
        return None
    scale = prior_curvature.rsqrt()
    spectrum = curvature(posterior, mode, x, y, scale, seed)
    log_dets = spectrum.traces(torch.log1p)
    left = 0.5 * spectrum.quadratic(lambda value: 1 / (1 + value), scale * gradient)
    log_det_prior = float(prior_curvature.log().sum())
    log_evidences = -float(energy) + left + 0.5 * (len(mode) * math.log(2 * math.pi) - log_det_prior - log_dets)
    moves = scale * spectrum.apply_to_probes(lambda value: (1 + value).rsqrt())
    there = torch.cat([gradient_fn(mode[None] + move.to(mode.dtype), 0).energy for move in moves]).double()  # one at a time: memory
    excess = float((there - energy).mean()) / (0.5 * len(mode))
    effective = float(spectrum.traces(lambda value: value / (1 + value)).mean())
    return Fit(log_evidences, effective, left, excess, evaluations)
