"""Draw the parameters of a `Model` from their priors, as starts of a mode search."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from langevin.random import Purpose, fork_rng
from langevin.targets.named_priors import NamedPrior
from langevin.targets.priors import Prior
from langevin.targets.space import Space

__all__ = ["RADII", "draw_from_priors"]

RADII = 2.0, 5.0, 10.0, 20.0
"""Half-widths of the uniform distributions of successive starts where there is no prior."""

_FIRST = 2**31  # number of the first start: no run has such chains
_GRID = torch.linspace(-18, 18, 4001, dtype=torch.float64)  # the prior is tabulated at sinh(t)
_OUTER = 0.01  # share of the mass in the outer quarter of the grid from which a prior is improper


def draw_from_priors(
    space: Space, priors: Mapping[str, NamedPrior], count: int, seed: int
) -> Tensor:
    """Return `count` positions (count, dim), each a function of (seed, index).

    Parents are drawn before the parameters whose priors depend on them. Elements whose prior is
    flat, improper or given as a log density are uniform on [-r, r], r = 2, 5, 10, 20 in turn.

    Example:
        >>> import langevin as lv
        >>> from torch.distributions import HalfNormal, Normal
        >>> space = lv.Model.log_density(
        ...     lambda p: p["a"] * 0.0, {"a": lv.real(), "b": lv.positive()}
        ... ).space
        >>> priors = {"a": lambda p: Normal(100.0, p["b"]), "b": HalfNormal(1.0)}
        >>> draws = draw_from_priors(space, priors, 200, seed=0)
        >>> bool((draws[:, 0] - 100).std() < 1.5), bool(draws[:, 1].exp().mean() < 1)
        (True, True)
    """
    starts = []
    for index in range(count):
        with fork_rng(seed, Purpose.INIT, _FIRST + index), torch.no_grad():
            starts.append(_one(space, priors, RADII[index % len(RADII)]))
    return torch.stack(starts).to(space.device)


def _one(space: Space, priors: Mapping[str, NamedPrior], radius: float) -> Tensor:
    parts = list(zip(space.names, space.constraints, strict=True))
    free = {
        name: radius * (2 * torch.rand(constraint.size, dtype=space.dtype) - 1)
        for name, constraint in parts
    }
    known: dict[str, Tensor] = {}
    for _ in parts:  # each round draws all parameters whose parents are known
        for name, constraint in parts:
            if name in known:
                continue
            try:
                if name in priors:
                    value = _value(priors[name], known, constraint.shape, space.dtype)
                    found = constraint.unconstrain(value, known)
                    free[name] = torch.where(torch.isfinite(found), found, free[name])
                known[name] = constraint.constrain(free[name], known)[0]
            except (KeyError, ValueError, RuntimeError, NotImplementedError):
                continue
    return torch.cat([free[name] for name in space.names])


def _value(
    prior: NamedPrior, values: Mapping[str, Tensor], shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """Return one draw of a parameter given its parents; NaN where there is no distribution."""
    if isinstance(prior, Prior):
        return _quantiles(prior, torch.rand(shape, dtype=torch.float64)).to(dtype)
    density: object = prior if isinstance(prior, Distribution) else prior(dict(values))
    if not isinstance(density, Distribution):
        return torch.full(shape, torch.nan, dtype=dtype)
    event = len(density.event_shape)
    return density.expand(shape[: len(shape) - event]).sample().to(dtype)


def _quantiles(prior: Prior, share: Tensor) -> Tensor:
    """Return quantiles of an elementwise prior from its energy on a grid; NaN if improper."""
    position = _GRID.sinh()
    mass = (_GRID.cosh().log() - prior.energy(position[:, None])).softmax(0)
    quarter = len(mass) // 8
    if float(mass[:quarter].sum() + mass[-quarter:].sum()) > _OUTER:
        return torch.full_like(share, torch.nan)
    at = torch.searchsorted(mass.cumsum(0), share.clamp(max=float(mass.sum()) - 1e-12))
    return position[at.clamp(max=len(mass) - 1)]
