"""Noise models of the regressor, and the choice between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.targets import likelihoods
from langevin.targets.likelihoods import Likelihood, StudentTLikelihood

__all__ = ["AUTO", "NOISES", "NORMALS", "Mixture", "outputs_of", "sample"]

_PARTS = 3  # of a mixture: mean, log-variance and logit
# Bounds of the noise's std in units of y's, wide enough for any training set. Without bounds a few
# draws predict any noise where there are few data, and dominate the predictive variance.
_WITHIN = (1e-3, 3.0)
_DF = 4  # degrees of freedom of Student's t
NORMALS = 2 + _DF
"""Standard normals that a sample of a target takes."""


@dataclass(frozen=True)
class Mixture(Likelihood):
    """``y ~ sum_k w_k N(m_k, s_k^2)``, all predicted: for skewed, bimodal or heavy-tailed noise.

    A target has outputs (m_1, ..., m_K, l_1, ..., l_K, a_1, ..., a_K): s_k^2 is exp(l_k) within
    bounds, and w the softmax of a.

    Args:
        components: K.

    Example:
        >>> equal = torch.zeros(1, 6)  # two components N(0, 1) each
        >>> Mixture(2).log_likelihood(equal, torch.zeros(1)).exp()
        tensor([0.3989])
    """

    components: int = 2

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        mean, log_square, log_weight = self.parts(output)
        square = (y.reshape(len(y), -1, 1) - mean).square() * torch.exp(-log_square)
        logs = log_weight - 0.5 * (square + log_square + math.log(2 * math.pi))
        return logs.logsumexp(-1).sum(-1)

    @override
    def mean(self, output: Tensor) -> Tensor:
        mean, _, log_weight = self.parts(output)
        return self.shaped((log_weight.exp() * mean).sum(-1), output)

    @override
    def variance(self, output: Tensor) -> Tensor:
        mean, log_square, log_weight = self.parts(output)
        weight = log_weight.exp()
        spread = (mean - (weight * mean).sum(-1, keepdim=True)).square()
        return self.shaped((weight * (log_square.exp() + spread)).sum(-1), output)

    @override
    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        mean, log_square, log_weight = self.parts(output)
        error = (value.reshape(len(value), -1, 1) - mean) * torch.exp(-0.5 * log_square)
        return self.shaped((log_weight.exp() * torch.special.ndtr(error)).sum(-1), output)

    def parts(self, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means, logs of variances and of weights, (n, targets, components) each."""
        each = output.unflatten(-1, (-1, _PARTS, self.components))
        mean, log_square, logits = each.unbind(-2)
        return mean, likelihoods.bounded(log_square, _WITHIN), logits.log_softmax(-1)

    def shaped(self, values: Tensor, output: Tensor) -> Tensor:
        """Return values (n, targets) in the shape of y."""
        return values[:, 0] if output.shape[-1] == _PARTS * self.components else values


AUTO = ("predicted", "student_t", "mixture")
"""The noise models that are compared; the first one unless another is better."""

NOISES: dict[str, Likelihood] = {
    "predicted": likelihoods.gaussian("predicted", within=_WITHIN),
    "student_t": likelihoods.student_t(float(_DF), "predicted", within=_WITHIN),
    "mixture": Mixture(2),
    "learned": likelihoods.gaussian("learned", within=_WITHIN),
}
"""The noise models of `LangevinRegressor(noise=...)`."""


def outputs_of(noise: str, targets: int) -> int:
    """Return how many outputs of the network a noise model takes.

    Example:
        >>> outputs_of("predicted", 1), outputs_of("mixture", 2), outputs_of("learned", 1)
        (2, 12, 1)
    """
    if noise == "mixture":
        return targets * _PARTS * Mixture().components
    return targets * (1 if noise == "learned" else 2)


def sample(likelihood: Likelihood, output: Tensor, noise: Tensor) -> Tensor:
    """Return samples of the targets, from the network's outputs (n, ...) and standard normals.

    Args:
        likelihood: one of `NOISES`.
        output: in float64.
        noise: standard normals (NORMALS, ...), the rest in the shape of the targets.

    Example:
        >>> output = torch.zeros(1, 2, dtype=torch.float64)
        >>> sample(NOISES["predicted"], output, torch.ones(NORMALS, 1, dtype=torch.float64))
        tensor([0.9512], dtype=torch.float64)
    """
    error, choice, others = noise[0], noise[1], noise[2:]
    if isinstance(likelihood, Mixture):
        means, log_square, log_weight = likelihood.parts(output)
        level = torch.special.ndtr(choice).reshape(*means.shape[:2], 1)
        picked = (level > log_weight.exp().cumsum(-1)[..., :-1]).sum(-1, keepdim=True)
        mean, scale = (
            likelihood.shaped(part.gather(-1, picked)[..., 0], output)
            for part in (means, (0.5 * log_square).exp())
        )
        return mean + scale * error
    variance = likelihood.variance(output)
    assert variance is not None
    if isinstance(likelihood, StudentTLikelihood):  # of variance df / (df - 2) scale^2
        error = error * ((_DF - 2) / others.square().sum(0)).sqrt()
    return likelihood.mean(output) + variance.sqrt() * error
