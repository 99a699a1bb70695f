"""The likelihood of counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.targets.likelihoods.base import Likelihood, per_row

__all__ = ["PoissonLikelihood", "poisson"]


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """``y ~ Poisson(exp(output))``, independent for every element; outputs and targets are (n,) or (n, k)."""

    is_discrete = True

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        self._check_shapes(output, y)
        y = y.to(output.dtype)
        return per_row(y * output - output.exp() - torch.lgamma(y + 1))

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self._check_shapes(output, y)
        bad = ~((y >= 0) & (y == y.round()) & torch.isfinite(y))
        if bad.any():
            raise needs("poisson", "y", "counts 0, 1, 2, ...", y[bad][0].item())

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output.exp()

    @override
    def variance(self, output: Tensor) -> Tensor:
        return output.exp()

    @override
    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        count = value.floor()
        return torch.where(count < 0, 0.0, torch.special.gammaincc(count.clamp(min=0) + 1, output.exp()))

    def _check_shapes(self, output: Tensor, y: Tensor) -> None:
        if output.ndim not in (1, 2):
            raise needs("poisson", "model", "outputs, log-rates, of shape (n,) or (n, k)", tuple(output.shape))
        if y.shape != output.shape:  # (n,) against (n, 1) would broadcast to (n, n)
            raise needs("poisson", "y", f"the shape of the model's outputs, {tuple(output.shape)}", tuple(y.shape))


def poisson() -> PoissonLikelihood:
    """Make the likelihood of counts whose log-rates are the model's outputs.

    Example:
        >>> poisson().log_likelihood(torch.zeros(2), torch.tensor([0, 2])).exp()
        tensor([0.3679, 0.1839])
    """
    return PoissonLikelihood()
