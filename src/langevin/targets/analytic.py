"""Targets with closed-form gradients: Gaussian (4.1), mixture (4.2) and ravine (4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, check_number, check_tensor, needs
from langevin.random import Purpose, normal, stream
from langevin.random.address import check_seed
from langevin.targets.base import Batch, Evaluation, Target, check_noise
from langevin.targets.priors import SCALE, GaussianPrior, Prior, check_prior, is_scale

__all__ = [
    "FIVE_MODES",
    "Gaussian",
    "Mixture",
    "Ravine",
    "gaussian",
    "mixture",
    "ravine",
    "ravine_data",
]


FIVE_MODES = ((-3.0, -3.0), (-3.0, 0.0), (0.0, 0.0), (3.0, 0.0), (3.0, 3.0))
"""The component means of section 4.2."""


@dataclass(frozen=True, eq=False)
class Gaussian(Target):
    """``U = (theta - mean)^T Sigma^-1 (theta - mean) / 2``, up to a constant; see `gaussian`."""

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
    """``U = -log sum_k w_k N(theta; mu_k, std**2 I)``; see `mixture`."""

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
        gradient = (shares[..., None] * offsets).sum(-2) * (1 / self.std**2)
        return Evaluation(-logs.logsumexp(-1), gradient)

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
    covariance: Tensor | Sequence[Sequence[float]],
    *,
    mean: Tensor | Sequence[float] | None = None,
    gradient_noise: float = 0.0,
) -> Gaussian:
    """Make N(mean, covariance).

    Args:
        covariance: positive definite, (dim, dim).
        mean: (dim,); zero by default.
        gradient_noise: std of normal noise added to the gradient at each step; 1 in the paper.

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
    given = torch.zeros_like(matrix[0]) if mean is None else mean
    centre = check_tensor("gaussian", "mean", given, len(matrix))
    noise = check_noise("gaussian", gradient_noise)
    return Gaussian(matrix, centre, torch.linalg.inv(matrix), noise)


def mixture(
    means: Tensor | Sequence[Sequence[float]] = FIVE_MODES,
    *,
    std: float = 0.5**0.5,
    weights: Tensor | Sequence[float] | None = None,
    gradient_noise: float = 0.0,
) -> Mixture:
    """Make a mixture of Gaussians with covariance std**2 I, by default that of section 4.2.

    Args:
        means: (components, dim).
        std: of every component; the paper's density exp(-|theta - mu|^2) has std sqrt(1/2).
        weights: of the components; equal by default.
        gradient_noise: std of normal noise added to the gradient at each step; 1 in the paper.

    Example:
        >>> mixture().covariance
        tensor([[7.7000, 3.6000],
                [3.6000, 4.1000]], dtype=torch.float64)
    """
    matrix = check_tensor("mixture", "means", means, "components", "dim")
    std = check_number("mixture", "std", std, SCALE, is_scale)
    given = torch.ones_like(matrix[:, 0]) if weights is None else weights
    share = check_tensor("mixture", "weights", given, len(matrix))
    if not (share > 0).all():
        raise needs("mixture", "weights", f"{len(matrix)} positive numbers", share.tolist())
    noise = check_noise("mixture", gradient_noise)
    return Mixture(matrix, std, share / share.sum(), noise)


def _regression(position: Tensor, x: Tensor) -> Tensor:
    """Return f_theta(x) of section 4.3; position (..., 2), x (..., n)."""
    first, second = position[..., :1], position[..., 1:]
    return (x - 1) ** 2 + 2 * (first * x).sin() + first / 30 + (second * x - 1).cos() - second / 20


@dataclass(frozen=True)
class Ravine(Target):
    """``U = sum_i (y_i - f_theta(x_i))**2 / 2 - log prior`` for theta (2,); data are (x, y)."""

    prior: Prior
    gradient_noise: float

    needs_data = True
    dim = 2
    has_closed_form = True

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if batch is None or len(batch.columns) != 2:
            raise needs("ravine", "data", "two columns (x, y)", batch)
        (x, y), scale = batch.columns, batch.scale
        first, second = position[..., :1], position[..., 1:]
        residual = y - _regression(position, x)
        slope_first = 2 * x * (first * x).cos() + 1 / 30
        slope_second = -x * (second * x - 1).sin() - 1 / 20
        slopes = torch.stack([slope_first, slope_second], -2)
        gradient = -scale * (slopes * residual[..., None, :]).sum(-1)
        likelihood = 0.5 * (residual * residual).sum(-1) + 0.5 * x.shape[-1] * math.log(2 * math.pi)
        energy = scale * likelihood + self.prior.energy(position)
        return Evaluation(energy, gradient + self.prior.gradient(position))


def ravine(*, prior: Prior | None = None, gradient_noise: float = 0.0) -> Ravine:
    """Make the target of section 4.3; pass the data to `sample(..., data=ravine_data(...))`.

    Args:
        prior: N(0, 1) for both parameters by default, as in the paper.
        gradient_noise: std of normal noise added to the gradient at each step; 0 in the paper,
            which has minibatches here.

    Example:
        >>> x, y = ravine_data(100)
        >>> batch = Batch((x, y), num_data=100, per_chain=False)
        >>> ravine().evaluate(torch.tensor([[20.0, 10.0]], dtype=x.dtype), batch).gradient.shape
        torch.Size([1, 2])
    """
    prior = GaussianPrior(1.0) if prior is None else check_prior("ravine", prior)
    return Ravine(prior, check_noise("ravine", gradient_noise))


def ravine_data(
    num_data: int = 10_000,
    *,
    truth: tuple[float, float] = (20.0, 10.0),
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Simulate a data set of section 4.3: x uniform on [-2, 4], y = f_truth(x) + N(0, 1).

    Example:
        >>> x, y = ravine_data(100, seed=1)
        >>> x.shape, bool((x.abs() <= 4).all())
        (torch.Size([100]), True)
    """
    check_integer("ravine_data", "num_data", num_data, 1, 2**32)
    check_seed("ravine_data", seed)
    position = check_tensor("ravine_data", "truth", truth, 2)
    at = stream(Purpose.DATA)
    x = 6 * torch.special.ndtr(normal(seed, at, 0, num_data, dtype=dtype)) - 2
    return x, _regression(position.to(dtype), x) + normal(seed, at, 1, num_data, dtype=dtype)
