"""Estimate the metric of a posterior from the curvature at a mode, then from draws and gradients.

Draws give the covariance ``C = Cov(θ)``, gradients the curvature ``V = E[g g^T]``: the matrix V of
equation (2) and, by integration by parts, the mean Hessian times the temperature. The metric is the
solution of ``G V G = C``, their geometric mean ``V^(-1/2) (V^(1/2) C V^(1/2))^(1/2) V^(-1/2)``. On
a Gaussian G is the covariance, exactly, as soon as there are more draws than dimensions, wherever
they lie, since ``g = C^-1 (θ - m)``. (Nutpie uses G, too: it minimises the Fisher divergence.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.random import Purpose, normal, streams
from langevin.targets.gradients import GradientFn
from langevin.targets.metric import Dense, Diagonal, LowRank, Metric

__all__ = [
    "DENSE_UP_TO",
    "KINDS",
    "Curvature",
    "MetricEstimate",
    "curvature",
    "curvature_metric",
    "diagonal_metric",
    "kind_for",
    "estimate_metric",
]

KINDS = ("diagonal", "dense", "low_rank")
DENSE_UP_TO = 500  # dimensions; a 500 by 500 matrix costs as much as 250,000 elements of data
_RANK = 40  # largest rank of a low-rank metric
_PROBES = 15  # products with the Hessian for its diagonal, and again for its largest eigenvalue
DIRECTIONS = 2**41  # steps of the addresses of random directions, which no run reaches
_PRIOR = 5.0  # weight of the previous metric, in draws


def kind_for(dim: int, metric: str) -> str:
    """Return the kind of metric that "auto" stands for."""
    return metric if metric != "auto" else "dense" if dim <= DENSE_UP_TO else "low_rank"


class Curvature(NamedTuple):
    """The Hessian at a position, with the scale ``width`` of each element taken out."""

    hessian: Tensor  # in units of the widths: ones or minus ones on the diagonal, (dim, dim)
    width: Tensor  # |H_ii|^(-1/2), (dim,)
    values: Tensor  # eigenvalues of the scaled Hessian, (dim,), float64
    vectors: Tensor  # its eigenvectors, (dim, dim), float64
    slopes: Tensor  # gradients at positions around, in the same units, (2 dim, dim)
    gradients: int  # taken per chain

    @property
    def metric(self) -> Dense:
        """The inverse Hessian; directions of negative curvature get its absolute value."""
        root = self.vectors * self.values.abs().clamp(min=1e-8) ** -0.5 @ self.vectors.mT
        return Dense(self.width[:, None] * root.to(self.width))

    def decrement(self, gradient: Tensor) -> float:
        """Return half of ``g^T |H|^-1 g``, the decrease of the energy in a Newton step."""
        parts = self.vectors.mT @ (gradient * self.width).double()
        return 0.5 * float((parts.square() / self.values.abs().clamp(min=1e-300)).sum())


def curvature(gradient_fn: GradientFn, centre: Tensor, chains: int) -> Curvature:
    """Return the Hessian at `centre` (dim,) from central differences of gradients.

    `chains` gradients are computed at once. The differences are over a tenth of the width of the
    posterior, which a first round over a tiny distance estimates.
    """
    dim = len(centre)
    reach = 1e-4 * (1 + centre.abs())
    taken = 0
    for _ in range(2):
        offsets = torch.cat([torch.diag(reach), -torch.diag(reach)])
        padded = torch.cat([offsets, offsets.new_zeros(-len(offsets) % chains, dim)])
        parts = [gradient_fn(centre + rows, 0).gradient for rows in padded.split(chains)]
        gradients = torch.cat(parts)[: 2 * dim]
        taken += -(-2 * dim // chains)
        hessian = (gradients[:dim] - gradients[dim:]) / (2 * reach[:, None])
        hessian = torch.nan_to_num(hessian + hessian.mT, 0.0, 0.0, 0.0) / 2
        width = hessian.diagonal().abs().clamp(min=1e-12) ** -0.5
        reach = (0.1 * width).clamp(max=1e3).maximum(1e-7 * (1 + centre.abs()))
    unit = width[:, None] * hessian * width  # ones on the diagonal: comparable eigenvalues
    return Curvature(unit, width, *torch.linalg.eigh(unit.double()), gradients * width, taken)


def curvature_metric(gradient_fn: GradientFn, centre: Tensor, chains: int) -> tuple[Dense, int]:
    """Return the metric from the Hessian at `centre` (dim,), and the gradients taken per chain."""
    found = curvature(gradient_fn, centre, chains)
    return found.metric, found.gradients


def diagonal_metric(
    gradient_fn: GradientFn, centre: Tensor, seed: int, chains: range
) -> tuple[Diagonal, float, int]:
    """Return a diagonal metric, the largest curvature in it, and the gradients taken per chain.

    ``E[z * (H z)]`` over random signs z is the diagonal of the Hessian (Hutchinson); products are
    differences of gradients. Power iteration gives the largest curvature in the resulting metric.
    """
    position, dim, taken = centre.expand(len(chains), -1), len(centre), 0
    gradient, at = gradient_fn(position, 0).gradient, streams(Purpose.INIT, chains)

    def drawn(step: int) -> Tensor:
        return normal(seed, at, step, dim, dtype=centre.dtype, device=centre.device)

    def product(direction: Tensor) -> Tensor:
        finfo = torch.finfo(centre.dtype)
        length = torch.linalg.vector_norm(direction, dim=-1, keepdim=True).clamp(min=finfo.tiny)
        reach = finfo.eps ** (1 / 3) * (1 + torch.linalg.vector_norm(centre))
        there = gradient_fn(position + reach * direction / length, 0).gradient
        return torch.nan_to_num((there - gradient) * length / reach, 0.0, 0.0, 0.0)

    total = torch.zeros_like(centre)
    for _ in range(_PROBES):
        signs = drawn(DIRECTIONS + taken).sign()
        total += (signs * product(signs)).mean(0).abs() / _PROBES
        taken += 1
    metric = Diagonal(total.clamp(min=1e-6 * float(total.max()) + 1e-12) ** -0.5)
    direction, curvature = drawn(DIRECTIONS + taken), 1.0
    for _ in range(_PROBES):
        turned = metric.pull(product(metric.push(direction)))
        size = torch.linalg.vector_norm(turned, dim=-1, keepdim=True)
        curvature = float((size / torch.linalg.vector_norm(direction, dim=-1, keepdim=True)).max())
        direction, taken = turned / size.clamp(min=1e-30), taken + 1
    return metric, max(curvature, 1e-30), taken + 1


class MetricEstimate(NamedTuple):
    """A metric, and the smallest curvature in its coordinates."""

    metric: Metric
    smallest_curvature: float  # one over the largest variance of y, at most 1: 1 on a Gaussian


def estimate_metric(
    metric: Metric, draws: Tensor, gradients: Tensor, kind: str, temperature: float = 1.0
) -> MetricEstimate:
    """Return the metric estimated from draws and gradients (n, dim) of chains in `metric`.

    A dense metric is estimated in the coordinates y of the previous one, towards which it is
    shrunk with the weight of `_PRIOR` draws.
    """
    shifted, forces = draws - draws.mean(0), gradients - gradients.mean(0)
    if kind == "diagonal":
        return MetricEstimate(Diagonal(_widths(shifted, forces)), 1.0)
    if kind == "low_rank":
        return MetricEstimate(_low_rank(shifted, forces), 1.0)
    if not isinstance(metric, Dense):
        metric = Dense(torch.diag(_widths(shifted, forces)))
    root = metric.root.double()
    y, pulled = torch.linalg.solve(root, shifted.double().mT).mT, forces.double() @ root
    covariance = _shrunk(y)
    mean = _geometric_mean(covariance, _shrunk(pulled))
    values, vectors = torch.linalg.eigh(mean)
    widest = float(torch.linalg.eigvals(torch.linalg.solve(mean, covariance)).real.max())
    # The symmetric root: eigenvectors of a mean near the identity are decided by rounding.
    estimate = root @ (vectors * values.clamp(min=1e-12) ** 0.5 @ vectors.mT)
    return MetricEstimate(Dense(estimate.to(draws)), min(1.0, temperature / widest))


def _widths(shifted: Tensor, forces: Tensor) -> Tensor:
    """Return the diagonal metric of draws and gradients."""
    tiny = torch.finfo(shifted.dtype).tiny
    widths, slopes = (part.square().mean(0).clamp(min=tiny) for part in (shifted, forces))
    return (widths / slopes) ** 0.25


def _shrunk(rows: Tensor) -> Tensor:
    """Return the second moment of the rows, shrunk by `_PRIOR` rows of a standard normal."""
    eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    return (rows.mT @ rows + _PRIOR * eye) / (len(rows) + _PRIOR)


def _geometric_mean(covariance: Tensor, squares: Tensor) -> Tensor:
    """Return the symmetric positive G with ``G squares G = covariance``."""
    values, vectors = torch.linalg.eigh(squares)
    root = vectors * values**0.5 @ vectors.mT
    inverse = vectors * values**-0.5 @ vectors.mT
    inner_values, inner_vectors = torch.linalg.eigh(root @ covariance @ root)
    return inverse @ (inner_vectors * inner_values.clamp(min=0) ** 0.5 @ inner_vectors.mT) @ inverse


def _low_rank(shifted: Tensor, forces: Tensor) -> Metric:
    """Return a diagonal metric, and the directions where it is off by a factor of two or more."""
    std = _widths(shifted, forces)
    y, pulled = (shifted / std).double(), (forces * std).double()
    picked = torch.linspace(0, len(y) - 1, min(len(y), _RANK), dtype=torch.float64).long()
    basis, _ = torch.linalg.qr(torch.cat([y[picked], pulled[picked]]).mT)  # (dim, at most 2 _RANK)
    inside = _geometric_mean(_shrunk(y @ basis), _shrunk(pulled @ basis))
    values, vectors = torch.linalg.eigh(inside)
    far = (values > 2) | (values < 0.5)
    if not far.any():
        return Diagonal(std)
    return LowRank(
        std, (basis @ vectors[:, far]).to(std), values[far].clamp(min=1e-12).sqrt().to(std)
    )
