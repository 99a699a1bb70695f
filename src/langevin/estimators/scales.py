"""The prior that is found: weights of a layer are Gaussian with a standard deviation that is drawn together with them.

    ``w_i ~ N(0, s^2)`` for the weights of one group,    ``s ~ half-Cauchy(1)``

Given the weights, the law of s is known (with one auxiliary number v, Makalic and Schmidt 2016), so between two stretches of steps
it is drawn anew from it: a Gibbs step, which keeps the joint posterior of weights and scales,

    ``1 / v ~ Gamma(1, rate 1 + 1 / s^2)``,    ``1 / s^2 ~ Gamma((n + 1) / 2, rate 1 / v + |w|^2 / 2)``    for n weights.

Both are sums of squared normals, hence functions of an address like all that is random here.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.noise import Purpose, normal, streams
from langevin.space import Space

__all__ = ["FoundScales"]

_LEAST, _LARGEST = 1e-6, 1e12  # of a precision: no weights are so small or large that they ask for more


@dataclass(frozen=True, eq=False)
class FoundScales:
    """A Gaussian prior with one precision per chain and layer, as `Posterior` takes it; `FoundScales.first` makes one.

    What is in no layer, such as the log of a learned noise, keeps the precision one, in the last column.
    """

    layers: tuple[str, ...]  # their names
    groups: Tensor  # the layer of each element of theta, or their number for those of none, (dim,)
    precision: Tensor  # (chains, layers + 1), or (1, layers + 1) for all chains

    @classmethod
    def first(cls, space: Space) -> FoundScales:
        """Return scales of one, with a layer for each module that has weights."""
        owners = [name.rpartition(".")[0] for name in space.names]
        layers = tuple(dict.fromkeys(owner for owner in owners if owner))
        numbers = torch.tensor([layers.index(owner) if owner else len(layers) for owner in owners])
        return cls(layers, numbers.repeat_interleave(torch.tensor(space.sizes)), torch.ones(1, len(layers) + 1, dtype=space.dtype))

    @property
    def std(self) -> Tensor:
        """The standard deviations of the layers, (chains, layers)."""
        return self.precision[:, :-1] ** -0.5

    @property
    def curvature(self) -> Tensor:
        """What it adds to the curvature along each axis, (chains, dim)."""
        return self.precision[:, self.groups]

    def energy(self, position: Tensor) -> Tensor:
        """Return ``-log prior`` of the weights given their scales."""
        each = self.curvature
        return 0.5 * (each * position * position - each.log() + math.log(2 * math.pi)).sum(-1)

    def gradient(self, position: Tensor) -> Tensor:
        """Return its gradient."""
        return self.curvature * position

    def redrawn(self, position: Tensor, *, seed: int, chains: range, step: int) -> FoundScales:
        """Draw all scales from their law given weights (chains, dim)."""
        count = self.precision.shape[1]
        squares = normal(seed, streams(Purpose.SCALES, chains), step, len(self.groups) + 3 * count, dtype=torch.float64).square()
        one, two, three, rest = squares.split([count, count, count, len(self.groups)], -1)
        by_auxiliary = 0.5 * (one + two) / (1 + self.precision)  # 1 / v
        none = torch.zeros_like(by_auxiliary)
        chi = three + none.index_add(1, self.groups, rest)
        rate = by_auxiliary + 0.5 * none.index_add(1, self.groups, position.double().square())
        precision = (0.5 * chi / rate).clamp(_LEAST, _LARGEST).to(position)
        precision[:, -1] = 1
        return dataclasses.replace(self, precision=precision)
