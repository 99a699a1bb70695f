"""The marginal likelihood of a model by Laplace's method, at a mode of its posterior (MacKay 1992).

The curvature of the energy at the mode, in units of the prior's, is ``I + A`` with
``A = D^-1/2 G D^-1/2``. G is the generalised Gauss-Newton matrix ``sum_i J_i^T L_i J_i`` of the
likelihood, J_i the Jacobian of row i's outputs and L_i the Hessian of its negative log-likelihood
with respect to them; D is the diagonal of the prior's Hessian. Negative eigenvalues of A count as
zero: they come from negative L_i, as with a predicted variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.adaptation import descend
from langevin.random import Purpose, normal, streams
from langevin.targets import Posterior
from langevin.targets.gradients import full

__all__ = ["DENSE", "Fit", "Spectrum", "curvature", "dense", "fit_at", "laplace_fit", "lanczos"]

DENSE = 1500  # parameters up to which A is a matrix; above, only its products are computed
_TOLERANCE = 1e-3  # of the energy, where a descent ends
_PROBES = 16, 4  # random sign vectors, and fewer of them in high dimensions
_STEPS = 100, 30  # Lanczos steps for each of them, likewise
_KEPT = 2**27  # elements of the Lanczos basis (1 GB) above which both are reduced
_MAX_ROWS = 2**15  # rows times vectors at once

Function = Callable[[Tensor], Tensor]

# ---- The fit


@dataclass(frozen=True)
class Fit:
    """A Gaussian around a mode, and its quality."""

    log_evidences: Tensor  # estimates, to be averaged; a single one if it is exact
    effective: float  # parameters that the data determine: the trace of A / (1 + A)
    left: float  # decrease of the energy by another Newton step: 0 at a mode
    excess: float  # energy of draws from the fit above the mode's, over dim / 2: 1 if quadratic
    evaluations: int  # gradients of all data in the descent


def laplace_fit(
    posterior: Posterior, x: Tensor, y: Tensor, starts: Tensor, num_steps: int, seed: int
) -> Fit | None:
    """Minimise the energy from every start, and fit a Gaussian at the lowest mode; see `fit_at`.

    Args:
        posterior: with its prior.
        x: inputs.
        y: targets.
        starts: positions (starts, dim).
        num_steps: maximum of evaluations of each descent.
        seed: of the probes that estimate the log determinant of a large matrix.
    """
    descent = descend(full(posterior, (x, y)), starts, num_steps, _TOLERANCE)
    mode = descent.position[int(descent.energy.nan_to_num(torch.inf).argmin())]
    return fit_at(posterior, x, y, mode, seed, descent.evaluations)


def fit_at(
    posterior: Posterior, x: Tensor, y: Tensor, mode: Tensor, seed: int, evaluations: int = 0
) -> Fit | None:
    """Fit a Gaussian at a position (dim,).

    ``log Z = -U + left + (d / 2) log 2 pi - log det(D) / 2 - log det(I + A) / 2``, where
    ``left = g^T (D + G)^-1 g / 2`` corrects for a descent that ended early; it is exact for
    quadratic energies.

    Returns:
        The fit; None if the prior's curvature is not positive at the mode, as that of a Laplace
        prior, or if values are not finite.
    """
    gradient_fn, dim = full(posterior, (x, y)), len(mode)
    energy, gradient = (value[0].double() for value in gradient_fn(mode[None], 0))
    prior_gradient = torch.func.grad(lambda theta: posterior.prior.gradient(theta).sum())
    prior_curvature = prior_gradient(mode).double()  # elementwise
    is_finite = torch.isfinite(energy) and torch.isfinite(gradient).all()
    if not is_finite or not (prior_curvature > 0).all():
        return None
    scale = prior_curvature.rsqrt()
    spectrum = curvature(posterior, mode, x, y, scale, seed)
    pull = (scale * gradient)[None]
    left = 0.5 * float((pull * spectrum.apply(lambda value: 1 / (1 + value), pull)).sum())
    log_dets = float(prior_curvature.log().sum()), spectrum.traces(torch.log1p)
    constant = dim * math.log(2 * math.pi)
    log_evidences = -float(energy) + left + 0.5 * (constant - log_dets[0] - log_dets[1])
    moves = scale * spectrum.apply(lambda value: (1 + value).rsqrt(), spectrum.probes)
    # one draw at a time, to save memory
    energies = [gradient_fn(mode[None] + move.to(mode.dtype), 0).energy for move in moves]
    excess = float((torch.cat(energies).double() - energy).mean()) / (0.5 * dim)
    effective = float(spectrum.traces(lambda value: value / (1 + value)).mean())
    return Fit(log_evidences, effective, left, excess, evaluations)


# ---- Functions of the curvature


@dataclass(frozen=True)
class Spectrum:
    """Functions f(A) of a symmetric matrix A; its negative eigenvalues count as zero."""

    apply: Callable[[Function, Tensor], Tensor]  # f(A) v for every vector v, (m, dim)
    probes: Tensor  # random signs, (probes, dim)
    values: Tensor | None = None  # eigenvalues, if they are known

    def traces(self, function: Function) -> Tensor:
        """Return the trace of f(A), (1,), or an estimate for each probe z, ``z^T f(A) z``."""
        if self.values is not None:
            return function(self.values).sum()[None]
        return (self.probes * self.apply(function, self.probes)).sum(-1)


def dense(matrix: Tensor, probes: Tensor) -> Spectrum:
    """Return the spectrum of a small matrix, by its eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp(min=0)
    return Spectrum(lambda f, v: (v @ vectors * f(values)) @ vectors.mT, probes, values)


def lanczos(product: Function, probes: Tensor) -> Spectrum:
    """Return the spectrum of a large matrix A, given ``v -> A v``.

    ``f(A) v`` is computed in the Krylov space of v (Golub and Meurant 1994).
    """
    spaces = _lanczos(product, probes)  # used for each function of the probes

    def apply(function: Function, vectors: Tensor) -> Tensor:
        basis, values, small = spaces if vectors is probes else _lanczos(product, vectors)
        weights = small[:, :1] * function(values.clamp(min=0))[:, None]
        inside = (small * weights).sum(-1)
        return vectors.norm(dim=-1, keepdim=True) * (inside[:, None] @ basis)[:, 0]

    return Spectrum(apply, probes)


def curvature(
    posterior: Posterior, position: Tensor, x: Tensor, y: Tensor, scale: Tensor, seed: int
) -> Spectrum:
    """Return ``S G S`` with S = diag(scale): exact if small, by products if large.

    Args:
        posterior: its likelihood is used.
        position: the mode (dim,).
        x: inputs of all rows.
        y: their targets.
        scale: D^-1/2, (dim,), float64.
        seed: of the probes.
    """
    dim = len(position)
    count = _PROBES[0] if _PROBES[0] * _STEPS[0] * dim <= _KEPT else _PROBES[1]
    at = streams(Purpose.DATA, range(count))
    probes = normal(seed, at, 0, dim, dtype=torch.float64).to(scale.device).sign()

    def product(vectors: Tensor) -> Tensor:
        scaled = (scale * vectors).to(position.dtype)
        return scale * _gauss_newton_times(posterior, position, x, y, scaled)

    if dim <= DENSE:
        return dense(product(torch.eye(dim).to(scale)), probes)
    return lanczos(product, probes)


def _lanczos(product: Function, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return bases of Krylov spaces, and eigenvalues and eigenvectors of A within them.

    The bases (m, k, dim) are orthonormal; when a space is exhausted, zeros follow, whose
    eigenvalues and weights are 0.
    """
    dim = starts.shape[-1]
    steps = min(dim, _STEPS[0], max(_STEPS[1], _KEPT // (len(starts) * dim)))
    basis = starts.new_zeros(len(starts), steps, dim)
    small = starts.new_zeros(len(starts), steps, steps)
    vector = _unit(starts, torch.zeros_like(starts[:, :1]))
    for k in range(steps):
        basis[:, k] = vector
        image = product(vector)
        small[:, k, k] = (image * vector).sum(-1)
        size = image.norm(dim=-1, keepdim=True)
        for _ in range(2):  # orthogonalise twice, against rounding errors
            image = image - ((basis[:, : k + 1] @ image[..., None]).mT @ basis[:, : k + 1])[:, 0]
        if k + 1 < steps:
            vector = _unit(image, 1e-7 * size)
            small[:, k, k + 1] = small[:, k + 1, k] = (image * vector).sum(-1)
    return basis, *torch.linalg.eigh(small)


def _unit(vectors: Tensor, negligible: Tensor) -> Tensor:
    norm = vectors.norm(dim=-1, keepdim=True)
    return torch.where(norm > negligible, vectors / norm, 0.0)


def _gauss_newton_times(
    posterior: Posterior, position: Tensor, x: Tensor, y: Tensor, vectors: Tensor
) -> Tensor:
    """Return G v for every vector, (m, dim): in reverse mode, which more layers support."""
    likelihood, total = posterior.likelihood, torch.zeros_like(vectors, dtype=torch.float64)
    rows = max(1, _MAX_ROWS // len(vectors))

    def times(x: Tensor, y: Tensor) -> Function:
        def slope(outputs: Tensor) -> Tensor:
            return torch.func.grad(lambda at: -likelihood.log_likelihood(at, y).sum())(outputs)

        outputs, back, *_ = torch.func.vjp(lambda theta: posterior.output_fn(theta, x), position)
        # J^T is linear: its transpose is J
        _, forward, *_ = torch.func.vjp(lambda change: back(change)[0], torch.zeros_like(outputs))
        _, across, *_ = torch.func.vjp(slope, outputs)
        return lambda vector: back(across(forward(vector)[0])[0])[0]

    with torch.no_grad():
        for inputs, targets in zip(x.split(rows), y.split(rows), strict=True):
            total += torch.func.vmap(times(inputs, targets))(vectors)
    return total
