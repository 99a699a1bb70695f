"""The curvature of an energy at its mode, in units of the prior's: ``A = D^-1/2 G D^-1/2``, as far as functions of it are needed.

G is the generalised Gauss-Newton matrix ``sum_i J_i^T L_i J_i`` of the likelihood, J_i the Jacobian of row i's outputs and L_i the
Hessian of its negative log-likelihood with respect to them; D is the diagonal of the prior's Hessian. ``I + A`` is the curvature of
the posterior. Eigenvalues of A below zero count as zero: G has some where L_i has, as for a predicted variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from langevin.noise import Purpose, normal, streams
from langevin.targets import Posterior

__all__ = ["DENSE", "Spectrum", "curvature"]

DENSE = 1500  # parameters up to which A is a matrix; beyond, it is multiplied with vectors only
_PROBES = 16, 4  # random signs, (±1, ..., ±1), of which traces and draws are made; fewer in many dimensions, where each says more
_STEPS = 100, 30  # of Lanczos' recursion, for each of them; fewer in many dimensions
_KEPT = 2**27  # numbers of its vectors, 1 GB, for which both have to be fewer
_NUMBERS = 2**22  # of the Jacobian that are held at a time
_ROWS = 2**15  # times vectors that are looked at at a time

Function = Callable[[Tensor], Tensor]


class Spectrum(Protocol):
    """A symmetric matrix A >= 0, asked for functions f of its eigenvalues."""

    probes: Tensor  # random signs, (probes, dim)

    def traces(self, function: Function) -> Tensor:
        """Return estimates of the trace of f(A), whose mean is the best one: one of each probe, or the exact trace alone."""
        ...

    def quadratic(self, function: Function, vector: Tensor) -> float:
        """Return ``v^T f(A) v``."""
        ...

    def apply_to_probes(self, function: Function) -> Tensor:
        """Return ``f(A) z`` for every probe z, (probes, dim)."""
        ...


def curvature(posterior: Posterior, position: Tensor, x: Tensor, y: Tensor, scale: Tensor, seed: int) -> Spectrum:
    """Return ``S G S`` at one position (dim,), with S = `scale` (dim,) as a diagonal matrix: exactly where it is small.

    Args:
        posterior: of which the likelihood is taken.
        position: the mode.
        x: inputs of all rows.
        y: their targets.
        scale: D^-1/2, float64.
        seed: of the probes.
    """
    dim = len(position)
    count = _PROBES[0] if _PROBES[0] * _STEPS[0] * dim <= _KEPT else _PROBES[1]
    at = streams(Purpose.DATA, range(count))
    probes = normal(seed, at, 0, dim, dtype=torch.float64).to(scale.device).sign()
    if dim <= DENSE:
        matrix = _gauss_newton(posterior, position, x, y) * scale * scale[:, None]
        values, vectors = torch.linalg.eigh(matrix)
        return Dense(values, vectors, probes)

    def product(vectors: Tensor) -> Tensor:
        return scale * _gauss_newton_times(posterior, position, x, y, (scale * vectors).to(position.dtype)).double()

    return Lanczos(product, probes, *_lanczos(product, probes))


@dataclass(frozen=True)
class Dense(Spectrum):
    """A matrix by its eigenvalues and eigenvectors."""

    values: Tensor  # (dim,)
    vectors: Tensor  # (dim, dim), in columns
    probes: Tensor

    @override
    def traces(self, function: Function) -> Tensor:
        return function(self.values.clamp(min=0)).sum()[None]

    @override
    def quadratic(self, function: Function, vector: Tensor) -> float:
        return float(function(self.values.clamp(min=0)) @ (vector @ self.vectors).square())

    @override
    def apply_to_probes(self, function: Function) -> Tensor:
        return (self.probes @ self.vectors * function(self.values.clamp(min=0))) @ self.vectors.mT


@dataclass(frozen=True)
class Lanczos(Spectrum):
    """A matrix by its products with vectors: Gauss quadrature, from Lanczos' recursion (Golub and Meurant 1994)."""

    product: Function
    probes: Tensor
    basis: Tensor  # (probes, steps, dim)
    values: Tensor  # (probes, steps), of the small tridiagonal matrices
    vectors: Tensor  # (probes, steps, steps)

    @override
    def traces(self, function: Function) -> Tensor:
        weights = self.vectors[:, 0].square()
        return self.probes.shape[-1] * (weights * function(self.values.clamp(min=0))).sum(-1)

    @override
    def quadratic(self, function: Function, vector: Tensor) -> float:
        _, values, vectors = _lanczos(self.product, vector[None])
        return float(vector @ vector * (vectors[0, 0].square() * function(values[0].clamp(min=0))).sum())

    @override
    def apply_to_probes(self, function: Function) -> Tensor:
        inside = (self.vectors * (self.vectors[:, :1] * function(self.values.clamp(min=0))[:, None])).sum(-1)
        return self.probes.norm(dim=-1, keepdim=True) * (inside[:, None] @ self.basis)[:, 0]


def _lanczos(product: Function, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return orthonormal bases (m, k, dim) of ``v, A v, A^2 v, ...``, and the eigenvalues and eigenvectors of A within them.

    Where the space is exhausted, zeros follow: their eigenvalue is 0, and their weight.
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
        for _ in range(2):  # against all before, twice: rounding would bring back what was found already
            image = image - ((basis[:, : k + 1] @ image[..., None]).mT @ basis[:, : k + 1])[:, 0]
        if k + 1 < steps:
            vector = _unit(image, 1e-7 * size)
            small[:, k, k + 1] = small[:, k + 1, k] = (image * vector).sum(-1)
    return basis, *torch.linalg.eigh(small)


def _unit(vectors: Tensor, negligible: Tensor) -> Tensor:
    norm = vectors.norm(dim=-1, keepdim=True)
    return torch.where(norm > negligible, vectors / norm, 0.0)


def _gauss_newton(posterior: Posterior, position: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return G, (dim, dim), in float64."""

    def output(theta: Tensor, row: Tensor) -> Tensor:
        return posterior.output_fn(theta, row[None])[0]

    def energy(outputs: Tensor, target: Tensor) -> Tensor:
        return -posterior.likelihood.log_likelihood(outputs[None], target[None])[0]

    jacobian_fn = torch.func.vmap(torch.func.jacrev(output), in_dims=(None, 0))
    hessian_fn = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(energy)))
    dim = len(position)
    total = torch.zeros(dim, dim, dtype=torch.float64, device=position.device)
    with torch.no_grad():
        outputs = posterior.output_fn(position, x[:1])[0].numel()
        rows = max(1, _NUMBERS // (outputs * dim))
        for inputs, targets in zip(x.split(rows), y.split(rows), strict=True):
            jacobian = jacobian_fn(position, inputs).reshape(len(inputs), -1, dim)
            width = jacobian.shape[1]
            hessian = hessian_fn(posterior.output_fn(position, inputs), targets).reshape(len(inputs), width, width)
            total += (jacobian.reshape(-1, dim).mT @ (hessian @ jacobian).reshape(-1, dim)).double()
    return (total + total.mT) / 2


def _gauss_newton_times(posterior: Posterior, position: Tensor, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
    """Return G v for every vector, (m, dim): forward through the Jacobian, across the Hessian of the outputs, and back."""
    total = torch.zeros_like(vectors)
    rows = max(1, _ROWS // len(vectors))
    with torch.no_grad():
        for inputs, targets in zip(x.split(rows), y.split(rows), strict=True):
            total += torch.func.vmap(_times(posterior, position, inputs, targets))(vectors)
    return total


def _times(posterior: Posterior, position: Tensor, x: Tensor, y: Tensor) -> Function:
    """Return v -> G v for some rows; in reverse mode only, which more layers have than forward mode."""

    def slope(outputs: Tensor) -> Tensor:
        return torch.func.grad(lambda at: -posterior.likelihood.log_likelihood(at, y).sum())(outputs)

    outputs, back = torch.func.vjp(lambda theta: posterior.output_fn(theta, x), position)[:2]
    _, forward = torch.func.vjp(lambda change: back(change)[0], torch.zeros_like(outputs))[:2]  # J^T is linear: its transpose is J
    _, across = torch.func.vjp(slope, outputs)[:2]
    return lambda vector: back(across(forward(vector)[0])[0])[0]
