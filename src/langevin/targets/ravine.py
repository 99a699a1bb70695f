"""The regression with long narrow energy ravines (section 4.3), with its closed-form gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_number, check_tensor, needs
from langevin.noise import Purpose, normal, stream
from langevin.noise.address import check_int, check_seed
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.priors import GaussianPrior, Prior, check_prior

__all__ = ["Ravine", "ravine", "ravine_data"]


def _regression(position: Tensor, x: Tensor) -> Tensor:
    """Return f_theta(x) of section 4.3; position (..., 2), x (..., n)."""
    first, second = position[..., :1], position[..., 1:]
    return (x - 1) ** 2 + 2 * (first * x).sin() + first / 30 + (second * x - 1).cos() - second / 20


@dataclass(frozen=True)
class Ravine(Target):
    """``U = sum_i (y_i - f_theta(x_i))**2 / 2 - log prior`` for theta in the plane; data are (x, y)."""

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
        gradient = -scale * (slopes * residual[..., None, :]).sum(-1) + self.prior.gradient(position)
        likelihood = 0.5 * (residual * residual).sum(-1) + 0.5 * x.shape[-1] * math.log(2 * math.pi)
        return Evaluation(scale * likelihood + self.prior.energy(position), gradient)


def ravine(*, prior: Prior | None = None, gradient_noise: float = 0.0) -> Ravine:
    """Make the target of section 4.3; pass the data to `sample(..., data=ravine_data(...))`.

    Args:
        prior: N(0, 1) for both parameters by default, as in the paper.
        gradient_noise: standard deviation of noise added to the gradient at each step; 0 in the paper, which has minibatches here.

    Example:
        >>> x, y = ravine_data(100)
        >>> batch = Batch((x, y), num_data=100, per_chain=False)
        >>> ravine().evaluate(torch.tensor([[20.0, 10.0]], dtype=x.dtype), batch).gradient.shape
        torch.Size([1, 2])
    """
    prior = GaussianPrior(1.0) if prior is None else check_prior("ravine", prior)
    return Ravine(prior, check_number("ravine", "gradient_noise", gradient_noise, ">= 0", lambda v: v >= 0))


def ravine_data(
    num_data: int = 10_000, *, truth: tuple[float, float] = (20.0, 10.0), seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Simulate a data set of section 4.3: x uniform on [-2, 4], y = f_truth(x) + N(0, 1).

    Example:
        >>> x, y = ravine_data(100, seed=1)
        >>> x.shape, bool((x.abs() <= 4).all())
        (torch.Size([100]), True)
    """
    check_int("ravine_data", "num_data", num_data, 1, 2**32)
    check_seed("ravine_data", seed)
    position = check_tensor("ravine_data", "truth", truth, 2)
    at = stream(Purpose.DATA)
    x = 6 * torch.special.ndtr(normal(seed, at, 0, num_data, dtype=dtype)) - 2
    return x, _regression(position.to(dtype), x) + normal(seed, at, 1, num_data, dtype=dtype)
