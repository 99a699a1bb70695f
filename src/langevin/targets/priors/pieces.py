"""A prior on the whole of theta, put together from those of its parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from langevin.targets.priors.base import PlacedPrior, Prior, check_any_prior, check_prior
from langevin.targets.priors.gaussians import GaussianPrior

__all__ = ["Gaussians", "Pieces", "on_theta", "place"]


class Pieces(Prior):
    """Several priors side by side: each for some elements of theta, which follow one another.

    Args:
        priors: of the pieces.
        sizes: elements of each.
        shown: for messages: what it was made from.

    Example:
        >>> from langevin.targets.priors import flat
        >>> Pieces([GaussianPrior(1.0), flat()], [1, 2], "a Gaussian, then nothing").gradient(torch.ones(3))
        tensor([1., 0., 0.])
    """

    def __init__(self, priors: Sequence[Prior], sizes: Sequence[int], shown: str) -> None:
        """See the class."""
        self.priors, self.sizes, self._shown = tuple(priors), list(sizes), shown

    def __repr__(self) -> str:
        return self._shown

    def energy(self, position: Tensor) -> Tensor:
        """Return ``-log prior`` summed over the last axis, with its normalising constant."""
        parts = position.split(self.sizes, -1)
        first, *rest = (prior.energy(part) for prior, part in zip(self.priors, parts, strict=True))
        return sum(rest, start=first)

    def gradient(self, position: Tensor) -> Tensor:
        """Return the gradient of `energy`, elementwise."""
        parts = position.split(self.sizes, -1)
        return torch.cat([prior.gradient(part) for prior, part in zip(self.priors, parts, strict=True)], -1)


class Gaussians(Pieces):
    """Gaussians side by side, as one vector of precisions.

    Args:
        priors: of the pieces, all Gaussian.
        sizes: elements of each.
        shown: for messages: what it was made from.
        like: for dtype and device.

    Example:
        >>> both = Gaussians([GaussianPrior(1.0), GaussianPrior(0.5)], [1, 2], "two scales", torch.zeros(()))
        >>> both.gradient(torch.ones(3))
        tensor([1., 4., 4.])
    """

    def __init__(self, priors: Sequence[GaussianPrior], sizes: Sequence[int], shown: str, like: Tensor) -> None:
        """See the class."""
        super().__init__(priors, sizes, shown)
        pairs = list(zip(priors, sizes, strict=True))
        self.precision = torch.cat([like.new_full((size,), 1 / prior.std**2) for prior, size in pairs])
        self._constant = sum(size * (math.log(prior.std) + 0.5 * math.log(2 * math.pi)) for prior, size in pairs)

    def energy(self, position: Tensor) -> Tensor:
        """Return ``-log prior`` summed over the last axis, with its normalising constant."""
        return 0.5 * (position * position * self.precision).sum(-1) + self._constant

    def gradient(self, position: Tensor) -> Tensor:
        """Return the gradient of `energy`, elementwise."""
        return position * self.precision


def place(prior: PlacedPrior, names: Sequence[str], shapes: Sequence[torch.Size]) -> tuple[Prior, ...]:
    """Return the prior of each parameter.

    Example:
        >>> from langevin.targets.priors import fan_in
        >>> place(fan_in(1.0), ["weight", "bias"], [torch.Size((5, 4)), torch.Size((5,))])
        (GaussianPrior(std=0.5), GaussianPrior(std=1.0))
    """
    return tuple(check_prior(type(prior).__name__, prior.prior_for(name, shape)) for name, shape in zip(names, shapes, strict=True))


def on_theta(who: str, prior: Any, names: Sequence[str], shapes: Sequence[torch.Size], sizes: Sequence[int], like: Tensor) -> Prior:
    """Return a prior on the whole of theta, where it depends on names and shapes; any other prior is one already.

    Args:
        who: the caller, for error messages.
        prior: what was given.
        names: of the parameters.
        shapes: of the parameters.
        sizes: how many elements of theta each has.
        like: for dtype and device.

    Example:
        >>> from langevin.targets.priors import by_name
        >>> prior = by_name({"weight": GaussianPrior(0.5), "*": GaussianPrior(1.0)})
        >>> shapes = [torch.Size((1, 2)), torch.Size((1,))]
        >>> on_theta("Posterior", prior, ["weight", "bias"], shapes, [2, 1], torch.zeros(())).gradient(torch.ones(3))
        tensor([4., 4., 1.])
    """
    prior = check_any_prior(who, prior)
    if not isinstance(prior, PlacedPrior):
        return prior
    prior.check_names(names)
    parts = zip(place(prior, names, shapes), sizes, strict=True)
    merged = [(piece, sum(size for _, size in run)) for piece, run in groupby(parts, key=lambda part: part[0])]
    priors, lengths = [piece for piece, _ in merged], [length for _, length in merged]
    if len(priors) == 1:
        return priors[0]
    if all(type(piece) is GaussianPrior for piece in priors):
        return Gaussians([piece for piece in priors if isinstance(piece, GaussianPrior)], lengths, repr(prior), like)
    return Pieces(priors, lengths, repr(prior))
