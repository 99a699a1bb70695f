"""The scale of a posterior: from the curvature where it is densest, then from draws and their gradients.

Draws alone tell the widths, gradients alone the curvatures: ``C = Cov(θ)``, ``V = E[g g^T]``, which is the matrix V of equation (2)
and, by parts, the mean Hessian times the temperature. The metric that takes both to the same matrix, ``G V G = C``, is their
geometric mean ``G = V^(-1/2) (V^(1/2) C V^(1/2))^(1/2) V^(-1/2)``. On a Gaussian it is the covariance, exactly, as soon as there
are more draws than dimensions, wherever they lie: ``g = C^-1 (θ - m)`` makes ``V = C^-1 Cov C^-1`` for any cloud of points.
(Nutpie's choice, too: it minimises the Fisher divergence.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.gradients import GradientFn
from langevin.noise import Purpose, normal, streams
from langevin.scales import Dense, Diagonal, LowRank, Scale

__all__ = ["DENSE_UP_TO", "KINDS", "Learnt", "curvature_scale", "diagonal_scale", "kind_for", "learn"]

KINDS = ("diagonal", "dense", "low_rank")
DENSE_UP_TO = 500  # dimensions; a matrix of 500 by 500 costs a chain as much as 250,000 elements of data do
_RANK = 40  # directions of their own of a low-rank scale, at most
_PROBES = 15  # products with the Hessian for its diagonal, and again for its largest eigenvalue
DIRECTIONS = 2**41  # steps of the addresses of random directions: no run gets there
_PRIOR = 5.0  # draws that the scale so far counts for, beside those of a window


def kind_for(dim: int, scale: str) -> str:
    """Return the kind of scale that "auto" stands for."""
    return scale if scale != "auto" else "dense" if dim <= DENSE_UP_TO else "low_rank"


def curvature_scale(gradient_fn: GradientFn, centre: Tensor, chains: int) -> tuple[Dense, int]:
    """Return the scale of the Gaussian with the curvature at `centre` (dim,), and how many gradients a chain that took.

    The Hessian is made of central differences of gradients, `chains` of them at once, over a tenth of the width of the posterior,
    which a first round over a tiny distance finds. Directions of negative or no curvature get the width of its absolute value.
    """
    dim = len(centre)
    reach = 1e-4 * (1 + centre.abs())
    taken = 0
    for _ in range(2):
        offsets = torch.cat([torch.diag(reach), -torch.diag(reach)])
        padded = torch.cat([offsets, offsets.new_zeros(-len(offsets) % chains, dim)])
        gradients = torch.cat([gradient_fn(centre + rows, 0).gradient for rows in padded.split(chains)])[: 2 * dim]
        taken += -(-2 * dim // chains)
        hessian = (gradients[:dim] - gradients[dim:]) / (2 * reach[:, None])
        hessian = torch.nan_to_num(hessian + hessian.mT, 0.0, 0.0, 0.0) / 2
        width = hessian.diagonal().abs().clamp(min=1e-12) ** -0.5
        reach = (0.1 * width).clamp(max=1e3).maximum(1e-7 * (1 + centre.abs()))
    unit = width[:, None] * hessian * width  # ones on the diagonal, so that the eigenvalues are comparable
    values, vectors = torch.linalg.eigh(unit.double())
    root = vectors * values.abs().clamp(min=1e-8) ** -0.5
    return Dense(width[:, None] * root.to(centre)), taken


def diagonal_scale(gradient_fn: GradientFn, centre: Tensor, seed: int, chains: range) -> tuple[Scale, float, int]:
    """Return a diagonal scale for many dimensions, the largest curvature in it, and how many gradients a chain that took.

    ``E[z * (H z)]`` over random signs z is the diagonal of the Hessian (Hutchinson): products are differences of gradients. Power
    iteration in the scale that it makes gives the largest curvature left.
    """
    position, dim, taken = centre.expand(len(chains), -1), len(centre), 0
    gradient = gradient_fn(position, 0).gradient

    def product(direction: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(direction, dim=-1, keepdim=True).clamp(min=torch.finfo(centre.dtype).tiny)
        reach = torch.finfo(centre.dtype).eps ** (1 / 3) * (1 + torch.linalg.vector_norm(centre))
        there = gradient_fn(position + reach * direction / length, 0).gradient
        return torch.nan_to_num((there - gradient) * length / reach, 0.0, 0.0, 0.0)

    total = torch.zeros_like(centre)
    for _ in range(_PROBES):
        at = streams(Purpose.INIT, chains)
        signs = normal(seed, at, DIRECTIONS + taken, dim, dtype=centre.dtype, device=centre.device).sign()
        total += (signs * product(signs)).mean(0).abs() / _PROBES
        taken += 1
    scale = Diagonal(total.clamp(min=1e-6 * float(total.max()) + 1e-12) ** -0.5)
    direction, curvature = (
        normal(seed, streams(Purpose.INIT, chains), DIRECTIONS + taken, dim, dtype=centre.dtype, device=centre.device),
        1.0,
    )
    for _ in range(_PROBES):
        turned = scale.pull(product(scale.push(direction)))
        size = torch.linalg.vector_norm(turned, dim=-1, keepdim=True)
        curvature = float((size / torch.linalg.vector_norm(direction, dim=-1, keepdim=True)).max())
        direction, taken = turned / size.clamp(min=1e-30), taken + 1
    return scale, max(curvature, 1e-30), taken + 1


class Learnt(NamedTuple):
    """A scale, and how soft the softest direction is in its coordinates."""

    scale: Scale
    softness: float  # one over the largest variance of y, at most 1: 1 on a Gaussian


def learn(scale: Scale, draws: Tensor, gradients: Tensor, kind: str, temperature: float = 1.0) -> Learnt:
    """Return the scale that draws and gradients (n, dim) of chains in `scale` speak for.

    A dense one is found in the coordinates y of the scale so far, towards which it is shrunk: that counts as `_PRIOR` draws.
    """
    shifted, forces = draws - draws.mean(0), gradients - gradients.mean(0)
    if kind == "diagonal":
        return Learnt(Diagonal(_widths(shifted, forces)), 1.0)
    if kind == "low_rank":
        return Learnt(_low_rank(shifted, forces), 1.0)
    if not isinstance(scale, Dense):
        scale = Dense(torch.diag(_widths(shifted, forces)))
    root = scale.root.double()
    y, pulled = torch.linalg.solve(root, shifted.double().mT).mT, forces.double() @ root
    covariance = _shrunk(y)
    metric = _geometric_mean(covariance, _shrunk(pulled))
    values, vectors = torch.linalg.eigh(metric)
    widest = float(torch.linalg.eigvals(torch.linalg.solve(metric, covariance)).real.max())
    learnt = root @ (vectors * values.clamp(min=1e-12) ** 0.5)
    return Learnt(Dense(learnt.to(draws)), min(1.0, temperature / widest))


def _widths(shifted: Tensor, forces: Tensor) -> Tensor:
    """Return the diagonal scale of draws and gradients."""
    tiny = torch.finfo(shifted.dtype).tiny
    return (shifted.square().mean(0).clamp(min=tiny) / forces.square().mean(0).clamp(min=tiny)) ** 0.25


def _shrunk(rows: Tensor) -> Tensor:
    """Return the mean of the rows' products, with that of `_PRIOR` more rows of a standard normal."""
    eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    return (rows.mT @ rows + _PRIOR * eye) / (len(rows) + _PRIOR)


def _geometric_mean(covariance: Tensor, squares: Tensor) -> Tensor:
    """Return the symmetric positive G with ``G squares G = covariance``."""
    values, vectors = torch.linalg.eigh(squares)
    root = vectors * values**0.5 @ vectors.mT
    inverse = vectors * values**-0.5 @ vectors.mT
    inner_values, inner_vectors = torch.linalg.eigh(root @ covariance @ root)
    return inverse @ (inner_vectors * inner_values.clamp(min=0) ** 0.5 @ inner_vectors.mT) @ inverse


def _low_rank(shifted: Tensor, forces: Tensor) -> Scale:
    """Return a diagonal scale with the directions in which it is off by more than a factor of two, from the span of the rows."""
    std = _widths(shifted, forces)
    y, pulled = (shifted / std).double(), (forces * std).double()
    picked = torch.linspace(0, len(y) - 1, min(len(y), _RANK), dtype=torch.float64).long()
    basis, _ = torch.linalg.qr(torch.cat([y[picked], pulled[picked]]).mT)  # (dim, at most 2 _RANK)
    inside = _geometric_mean(_shrunk(y @ basis), _shrunk(pulled @ basis))
    values, vectors = torch.linalg.eigh(inside)
    far = (values > 2) | (values < 0.5)
    if not far.any():
        return Diagonal(std)
    return LowRank(std, (basis @ vectors[:, far]).to(std), values[far].clamp(min=1e-12).sqrt().to(std))
