"""The network of the estimators, and a prior with one unknown scale per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from typing_extensions import override

from langevin.targets import priors
from langevin.targets.priors import ByName, Prior

__all__ = ["SharedScale", "layer_scales", "network"]

_SCALE = 0.3  # s0 of `layer_scales`


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Return the network of the estimators: linear layers with SiLU between them.

    Example:
        >>> network(3, (8,), 2)[2]
        Linear(in_features=8, out_features=2, bias=True)
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.SiLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@dataclass(frozen=True, eq=False)
class SharedScale(Prior):
    """``θ ~ N(0, s^2 I)`` with one unknown s, ``1 / s^2 ~ Gamma(1/2, s0^2 / 2)``, integrated out.

    The n elements of θ are then jointly a multivariate Cauchy distribution of scale s0:
    ``p(θ) ∝ (1 + |θ|^2 / s0^2)^(-(n + 1) / 2)``. Each instance is a group of its own.

    Args:
        scale: s0; s is above it with probability 0.68, with a tail like that of a half-Cauchy.

    Example:
        >>> import torch
        >>> SharedScale(1.0).gradient(torch.tensor([1.0, 2.0]))  # (n + 1) θ / (s0^2 + |θ|^2)
        tensor([0.5000, 1.0000])
    """

    scale: float

    @override
    def energy(self, position: Tensor) -> Tensor:
        half, square = (position.shape[-1] + 1) / 2, self.scale**2
        constant = (half - 0.5) * math.log(math.pi * square) + math.lgamma(0.5) - math.lgamma(half)
        return half * (position.square().sum(-1) / square).log1p() + constant

    @override
    def gradient(self, position: Tensor) -> Tensor:
        total = position.square().sum(-1, keepdim=True) + self.scale**2
        return (position.shape[-1] + 1) * position / total


def layer_scales(model: nn.Sequential, others: Sequence[str] = ()) -> ByName:
    """Return the prior that gives each linear layer a scale of its own, and N(0, 1) to `others`.

    Example:
        >>> layer_scales(network(3, (8,), 2)).priors[0]
        ('0.*', SharedScale(scale=0.3))
    """
    layers = [name for name, part in model.named_children() if isinstance(part, nn.Linear)]
    scales: dict[str, Prior] = {f"{name}.*": SharedScale(_SCALE) for name in layers}
    return priors.by_name(scales | {name: priors.gaussian(1.0) for name in others})
