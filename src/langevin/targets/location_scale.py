"""Read location and scale of a distribution on the scale of a parameter's unconstrained numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from langevin.targets.constraints import Constraint, Interval, is_real

__all__ = ["LocationScale", "location_scale"]

_REAL = (
    distributions.Normal,
    distributions.StudentT,
    distributions.Laplace,
    distributions.Cauchy,
    distributions.Gumbel,
)


class LocationScale(NamedTuple):
    """Location m and scale of a prior; the scale has standard deviations s or is a factor L."""

    location: Tensor  # of the parameter's shape
    scale: Tensor  # of the parameter's shape; or lower triangular factors, (..., n, n)
    is_factor: bool = False


def location_scale(prior: Distribution, constraint: Constraint) -> LocationScale | None:
    """Return location and scale of the unconstrained numbers under `prior`, or None.

    A real parameter is its own unconstrained number; that of a positive one is its logarithm.

    Example:
        >>> from langevin.targets.constraints import positive, unit
        >>> one = torch.ones(())
        >>> location_scale(distributions.HalfCauchy(7.389 * one), positive()).location
        tensor(2.0000)
        >>> location_scale(distributions.Beta(one, one), unit()) is None
        True
    """
    while isinstance(prior, distributions.Independent):
        prior = prior.base_dist
    found = None
    if is_real(constraint):
        found = _on_the_line(prior)
    elif isinstance(constraint, Interval) and constraint.low == 0.0 and constraint.high is None:
        found = _of_the_logarithm(prior)
    if found is None:
        return None
    shape = constraint.shape
    square = (*shape, *shape[-1:]) if found.is_factor else shape
    location, scale = found.location.expand(shape), found.scale.expand(torch.Size(square))
    return LocationScale(location, scale, found.is_factor)


def _on_the_line(prior: Distribution) -> LocationScale | None:
    if isinstance(prior, _REAL):
        return LocationScale(prior.loc, prior.scale)
    if isinstance(prior, distributions.MultivariateNormal):
        return LocationScale(prior.loc, prior.scale_tril, is_factor=True)
    if isinstance(prior, distributions.TransformedDistribution) and prior.transforms:
        last = prior.transforms[-1]  # such as that of a logistic distribution
        if isinstance(last, distributions.AffineTransform):
            like = torch.zeros(prior.batch_shape)
            tensors = (torch.as_tensor(part) for part in (last.loc, last.scale))
            location, scale = (part + like.to(part) for part in tensors)
            return LocationScale(location, scale.abs())
    return None


def _of_the_logarithm(prior: Distribution) -> LocationScale | None:
    if isinstance(prior, distributions.LogNormal):
        return LocationScale(prior.loc, prior.scale)
    if isinstance(prior, distributions.HalfNormal | distributions.HalfCauchy):
        return LocationScale(prior.scale.log(), torch.ones_like(prior.scale))
    if isinstance(prior, distributions.Exponential):
        return LocationScale(-prior.rate.log(), torch.ones_like(prior.rate))
    if isinstance(prior, distributions.Weibull):
        return LocationScale(prior.scale.log(), 1 / prior.concentration)
    # The logarithm of a gamma variable has about these, for shapes that are not small.
    if isinstance(prior, distributions.Gamma):
        location = (prior.concentration / prior.rate).log()
        return LocationScale(location, prior.concentration**-0.5)
    if isinstance(prior, distributions.InverseGamma):
        location = (prior.rate / prior.concentration).log()
        return LocationScale(location, prior.concentration**-0.5)
    return None
