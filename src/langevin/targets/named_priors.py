"""Priors by name, of the values: those of `langevin.priors`, any of `torch.distributions`, or functions that return one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from langevin.checks import needs, takes
from langevin.constraints import Constraint
from langevin.space import Space
from langevin.targets.priors import Prior

__all__ = ["NamedPrior", "check_priors", "log_prior"]

NamedPrior = Prior | Distribution | Callable[[dict[str, Tensor]], Distribution | Tensor]

# Free numbers at which a prior is asked whether a parameter's values are in its support: the middle, both sides, the far ends.
_PROBES = (0.0, 0.3, -0.3, 3.0, -3.0, 30.0, -30.0, 1e4, -1e4)


def check_priors(who: str, prior: Any, space: Space) -> dict[str, NamedPrior]:
    """Return the priors by name, torch's in the dtype of the space and without validation, or fail where one does not fit."""
    if prior is None:
        return {}
    if not isinstance(prior, Mapping):
        raise needs(who, "prior", "a dict of priors by name", prior, TypeError)
    constraints = dict(zip(space.names, space.constraints, strict=True))
    found: dict[str, NamedPrior] = {}
    for name, given in prior.items():
        if name not in constraints:
            raise needs(who, "prior", f"names among {list(space.names)}", name)
        if isinstance(given, Distribution):
            check_fits(who, name, given, constraints[name].shape)
            _check_support(who, name, given, constraints[name], space.dtype)
            given = _unvalidated(given, space.dtype)
        elif isinstance(given, type) or not (isinstance(given, Prior) or (callable(given) and takes(given, 1))):
            kinds = "one of langevin.priors, a torch.distributions object, or a function of the dict of parameters that returns one"
            raise needs(who, "prior", f"{kinds} for {name!r}", given, TypeError)
        found[name] = given
    return found


def log_prior(who: str, priors: Mapping[str, NamedPrior], values: dict[str, Tensor]) -> Tensor:
    """Return the sum of the log densities of values, one number; for ONE dict of values."""
    total = torch.zeros((), dtype=next(iter(values.values())).dtype)
    for name, prior in priors.items():
        value = values[name]
        if isinstance(prior, Distribution):
            total = total + prior.log_prob(value).sum()
            continue
        if isinstance(prior, Prior):
            total = total - prior.energy(value.reshape(-1))
            continue
        given = prior(values)
        if isinstance(given, Distribution):
            check_fits(who, name, given, value.shape)
            given = given.log_prob(value)
        if not isinstance(given, Tensor):
            raise needs(who, "prior", f"a function for {name!r} that returns a distribution or its log density", given, TypeError)
        total = total + given.sum()
    return total


def check_fits(who: str, name: str, prior: Distribution, shape: torch.Size) -> None:
    """Fail when a distribution is of other shapes than a parameter: torch would broadcast the parameter and count it many times."""
    whole, event = prior.batch_shape + prior.event_shape, prior.event_shape
    try:
        fits = torch.broadcast_shapes(whole, shape) == shape and shape[len(shape) - len(event) :] == event
    except RuntimeError:
        fits = False
    if not fits:
        raise needs(who, "prior", f"a distribution for {name!r} of shape {tuple(shape)}", f"{prior} of shape {tuple(whole)}")


def _check_support(who: str, name: str, prior: Distribution, constraint: Constraint, dtype: torch.dtype) -> None:
    """Fail when a parameter takes values that its prior does not have, unless they depend on other parameters' values."""
    try:
        support: Any = prior.support
    except NotImplementedError:
        return
    try:
        values = [constraint.constrain(torch.full((constraint.size,), probe, dtype=dtype), {})[0] for probe in _PROBES]
    except KeyError:
        return
    outside = [value for value in values if not support.check(value).all()]
    if outside:
        raise needs(
            who, "prior", f"a prior whose support has all values that {name!r} takes: {constraint}",
            f"{prior} with support {support}, which does not have {outside[0].flatten()[:4].tolist()}",
        )  # fmt: skip


def _unvalidated(prior: Distribution, dtype: torch.dtype) -> Distribution:
    """Return a copy whose numbers are of a dtype, and which does not look at values: a chain may not do that alone."""
    prior = copy.deepcopy(prior)
    _prepare(prior, dtype)
    return prior


def _prepare(part: Any, dtype: torch.dtype) -> None:
    if isinstance(part, Distribution):
        part._validate_args = False
    for name, value in list(vars(part).items()):
        if isinstance(value, Tensor) and value.is_floating_point():
            vars(part)[name] = value.detach().to(dtype)
        elif isinstance(value, Distribution | torch.distributions.Transform):
            _prepare(value, dtype)
        elif isinstance(value, list):  # the transforms of a TransformedDistribution
            for entry in value:
                if isinstance(entry, torch.distributions.Transform):
                    _prepare(entry, dtype)
