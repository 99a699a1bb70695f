"""Targets with closed-form gradients and known moments: the correlated Gaussian (4.1) and the mixture (4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_number, check_tensor, needs
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.priors import SCALE, is_scale

__all__ = ["FIVE_MODES", "Gaussian", "Mixture", "gaussian", "mixture"]

FIVE_MODES = ((-3.0, -3.0), (-3.0, 0.0), (0.0, 0.0), (3.0, 0.0), (3.0, 3.0))
"""The component means of section 4.2."""


@dataclass(frozen=True, eq=False)
class Gaussian(Target):
    """``U = (theta - mean)^T Sigma^-1 (theta - mean) / 2`` up to a constant; use `gaussian` to build one."""

    covariance: Tensor
    mean: Tensor
    precision: Tensor
    gradient_noise: float

    has_closed_form = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", len(self.mean))

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        centred = position - self.mean.to(position)
        gradient = centred @ self.precision.to(position)
        return Evaluation(0.5 * (centred * gradient).sum(-1), gradient)

    @override
    def moments(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.covariance

    def metric(self, position: Tensor) -> Tensor:
        """Return the Fisher information at one position: the precision."""
        return self.precision.to(position)


@dataclass(frozen=True, eq=False)
class Mixture(Target):
    """``U = -log sum_k w_k N(theta; mu_k, std**2 I)``; use `mixture` to build one."""

    means: Tensor
    std: float
    weights: Tensor
    gradient_noise: float

    has_closed_form = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", self.means.shape[-1])

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        offsets = position[..., None, :] - self.means.to(position)
        dim = position.shape[-1]
        constant = self.weights.to(position).log() - 0.5 * dim * math.log(2 * math.pi * self.std**2)
        logs = constant - (offsets * offsets).sum(-1) * (0.5 / self.std**2)
        shares = logs.softmax(-1)
        return Evaluation(-logs.logsumexp(-1), (shares[..., None] * offsets).sum(-2) * (1 / self.std**2))

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture."""
        return self.weights @ self.means

    @property
    def covariance(self) -> Tensor:
        """The covariance of the mixture."""
        centred = self.means - self.mean
        eye = torch.eye(self.means.shape[-1], dtype=self.means.dtype)
        return self.std**2 * eye + (self.weights[:, None] * centred).mT @ centred

    @override
    def moments(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.covariance

    def nearest_mode(self, position: Tensor) -> Tensor:
        """Return the index of the nearest component mean, shape (...)."""
        rows = position.reshape(-1, position.shape[-1])
        return torch.cdist(rows, self.means.to(position)).argmin(-1).reshape(position.shape[:-1])


def gaussian(
    covariance: Tensor | Sequence[Sequence[float]], *, mean: Tensor | Sequence[float] | None = None, gradient_noise: float = 0.0
) -> Gaussian:
    """Make N(mean, covariance).

    Args:
        covariance: positive definite, (dim, dim).
        mean: (dim,); zero by default.
        gradient_noise: standard deviation of noise added to the gradient at each step; 1 in the paper.

    Example:
        >>> target = gaussian([[1.0, 0.9], [0.9, 1.0]], gradient_noise=1.0)
        >>> target.evaluate(torch.tensor([[1.0, 1.0]])).gradient
        tensor([[0.5263, 0.5263]])
    """
    matrix = check_tensor("gaussian", "covariance", covariance, "dim", "dim")
    if matrix.shape[0] != matrix.shape[1] or not torch.allclose(matrix, matrix.mT):
        raise needs("gaussian", "covariance", "a symmetric matrix", matrix.tolist())
    if torch.linalg.cholesky_ex(matrix).info != 0:
        raise needs("gaussian", "covariance", "a positive definite matrix", matrix.tolist())
    centre = torch.zeros_like(matrix[0]) if mean is None else check_tensor("gaussian", "mean", mean, len(matrix))
    noise = check_number("gaussian", "gradient_noise", gradient_noise, ">= 0", lambda v: v >= 0)
    return Gaussian(matrix, centre, torch.linalg.inv(matrix), noise)


def mixture(
    means: Tensor | Sequence[Sequence[float]] = FIVE_MODES,
    *,
    std: float = 0.5**0.5,
    weights: Tensor | Sequence[float] | None = None,
    gradient_noise: float = 0.0,
) -> Mixture:
    """Make a mixture of Gaussians with covariance std**2 I; by default the five components of section 4.2.

    Args:
        means: (components, dim).
        std: of every component; the paper's density exp(-|theta - mu|^2) has std sqrt(1/2).
        weights: of the components; equal by default.
        gradient_noise: standard deviation of noise added to the gradient at each step; 1 in the paper.

    Example:
        >>> mixture().covariance
        tensor([[7.7000, 3.6000],
                [3.6000, 4.1000]], dtype=torch.float64)
    """
    matrix = check_tensor("mixture", "means", means, "components", "dim")
    std = check_number("mixture", "std", std, SCALE, is_scale)
    share = torch.ones_like(matrix[:, 0]) if weights is None else check_tensor("mixture", "weights", weights, len(matrix))
    if not (share > 0).all():
        raise needs("mixture", "weights", f"{len(matrix)} positive numbers", share.tolist())
    noise = check_number("mixture", "gradient_noise", gradient_noise, ">= 0", lambda v: v >= 0)
    return Mixture(matrix, std, share / share.sum(), noise)
