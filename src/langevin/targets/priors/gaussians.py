"""Priors of Gaussians: flat, Gaussian, and spike-and-slab for sparse networks (equation 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, needs
from langevin.targets.priors.base import SCALE, Prior, is_scale

__all__ = ["Flat", "GaussianPrior", "SpikeSlab", "flat", "gaussian", "spike_slab"]


@dataclass(frozen=True)
class Flat(Prior):
    """No prior: energy 0.

    Example:
        >>> import torch
        >>> Flat().energy(torch.tensor([[1.0, 2.0]]))
        tensor([0.])
    """

    @override
    def energy(self, position: Tensor) -> Tensor:
        return position.new_zeros(position.shape[:-1])

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return 0 * position


@dataclass(frozen=True)
class GaussianPrior(Prior):
    """``N(0, std**2)`` for every element."""

    std: float

    def __post_init__(self) -> None:
        check_field(self, "priors.gaussian", "std", SCALE, is_scale)

    @override
    def energy(self, position: Tensor) -> Tensor:
        constant = math.log(self.std) + 0.5 * math.log(2 * math.pi)
        return ((position * position) * (0.5 / self.std**2) + constant).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return position * (1 / self.std**2)


@dataclass(frozen=True)
class SpikeSlab(Prior):
    """``slab_weight N(0, slab_std**2) + (1 - slab_weight) N(0, spike_std**2)`` for every element (equation 4)."""

    slab_weight: float
    slab_std: float
    spike_std: float
    log_odds: float = field(init=False)  # log of the spike's density over the slab's at zero
    precision_gap: float = field(init=False)  # 1 / spike_std**2 - 1 / slab_std**2

    def __post_init__(self) -> None:
        who = "priors.spike_slab"
        check_field(self, who, "slab_weight", "0 < slab_weight < 1", lambda v: 0 < v < 1)
        check_field(self, who, "spike_std", SCALE, is_scale)
        check_field(self, who, "slab_std", SCALE, is_scale)
        if self.spike_std >= self.slab_std:
            raise needs(who, "spike_std", f"less than slab_std = {self.slab_std}", self.spike_std)
        odds = (1 - self.slab_weight) / self.slab_weight * self.slab_std / self.spike_std
        object.__setattr__(self, "log_odds", math.log(odds))
        object.__setattr__(self, "precision_gap", 1 / self.spike_std**2 - 1 / self.slab_std**2)

    @property
    def threshold(self) -> float:
        """The smallest |theta| that is more likely drawn from the slab than from the spike (section 5.2).

        ``sqrt(log((1 - lambda) / lambda * sigma_1 / sigma_0) * 2 sigma_0**2 sigma_1**2 / (sigma_1**2 - sigma_0**2))``
        """
        return math.sqrt(2 * max(self.log_odds, 0.0) / self.precision_gap)

    @override
    def energy(self, position: Tensor) -> Tensor:
        def log_normal(std: float) -> Tensor:
            return position * position * (-0.5 / std**2) - (math.log(std) + 0.5 * math.log(2 * math.pi))

        slab = math.log(self.slab_weight) + log_normal(self.slab_std)
        spike = math.log1p(-self.slab_weight) + log_normal(self.spike_std)
        return -torch.logaddexp(slab, spike).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        # The share of the spike among the two densities at theta pulls with the spike's precision, the rest with the slab's.
        spike_share = (self.log_odds - (0.5 * self.precision_gap) * (position * position)).sigmoid()
        return position * (1 / self.slab_std**2 + self.precision_gap * spike_share)


def flat() -> Flat:
    """Make the flat prior, whose energy is zero.

    Example:
        >>> import torch
        >>> flat().gradient(torch.ones(2))
        tensor([0., 0.])
    """
    return Flat()


def gaussian(std: float) -> GaussianPrior:
    """Make the prior N(0, std**2) on every element.

    Example:
        >>> gaussian(std=2.0).gradient(torch.tensor([4.0]))
        tensor([1.])
    """
    return GaussianPrior(std)


def spike_slab(*, slab_weight: float, slab_std: float, spike_std: float) -> SpikeSlab:
    """Make the mixture prior of equation (4), for sparse networks.

    Args:
        slab_weight: lambda_k, the probability of the wide component.
        slab_std: sigma_1, its standard deviation.
        spike_std: sigma_0, that of the narrow component.

    Example:
        The paper's MNIST prior counts a weight as non-zero from here on:

        >>> round(spike_slab(slab_weight=1e-7, slab_std=0.02**0.5, spike_std=1e-5**0.5).threshold, 5)
        0.01996
    """
    return SpikeSlab(slab_weight, slab_std, spike_std)
