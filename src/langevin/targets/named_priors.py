"""Check and evaluate the priors of a `Model`: densities of the values, by parameter name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform

from langevin.checks import needs, takes
from langevin.targets.constraints import Constraint, Simplex
from langevin.targets.priors import Flat, Prior
from langevin.targets.space import Space

__all__ = ["NamedPrior", "check_priors", "log_prior", "prior_functions"]

NamedPrior = Prior | Distribution | Callable[[dict[str, Tensor]], Distribution | Tensor]

# Unconstrained numbers at which a prior's support is tested: the middle, both sides, the far ends.
_PROBES = (0.0, 0.3, -0.3, 3.0, -3.0, 30.0, -30.0, 1e4, -1e4)


def check_priors(who: str, prior: Any, space: Space) -> dict[str, NamedPrior]:
    """Return the priors by name, or fail if one does not fit its parameter.

    Distributions are returned in the dtype of the space and without validation, which looks at
    values and so cannot run under vmap.
    """
    if prior is None:
        return {}
    if not isinstance(prior, Mapping):
        raise needs(who, "prior", "a dict of priors by name", prior, TypeError)
    constraints = dict(zip(space.names, space.constraints, strict=True))
    found: dict[str, NamedPrior] = {}
    for name, given in prior.items():
        if name not in constraints:
            raise needs(who, "prior", f"names among {list(space.names)}", name)
        constraint = constraints[name]
        if isinstance(given, Distribution):
            _check_shape(who, name, given, constraint.shape)
            if not given.event_shape:
                _check_elements(who, name, given, constraint)
            _check_support(who, name, given, constraint, space.dtype)
            given = copy.deepcopy(given)
            _prepare(given, space.dtype)
        elif isinstance(given, Prior) and not isinstance(given, type):
            if not isinstance(given, Flat):
                _check_elements(who, name, given, constraint)
        elif isinstance(given, type) or not (callable(given) and takes(given, 1)):
            condition = (
                "one of langevin.priors, a torch.distributions object, or a function of the dict "
                f"of parameters that returns one for {name!r}"
            )
            raise needs(who, "prior", condition, given, TypeError)
        found[name] = given
    return found


def log_prior(who: str, priors: Mapping[str, NamedPrior], values: dict[str, Tensor]) -> Tensor:
    """Return the sum of the log densities for ONE dict of values."""
    total = torch.zeros((), dtype=next(iter(values.values())).dtype)
    for name, prior in priors.items():
        value = values[name]
        if isinstance(prior, Prior):
            total = total - prior.energy(value.reshape(-1))
            continue
        density: object = prior
        if not isinstance(prior, Distribution):
            density = prior(values)
            if isinstance(density, Distribution):
                _check_shape(who, name, density, value.shape)
        if isinstance(density, Distribution):
            density = density.log_prob(value)
        if not isinstance(density, Tensor):
            condition = f"a function for {name!r} that returns a distribution or its log density"
            raise needs(who, "prior", condition, density, TypeError)
        total = total + density.sum()
    return total


def prior_functions(priors: Mapping[str, NamedPrior]) -> dict[str, Callable[..., Any]]:
    """Return the priors that are functions of the dict of parameters."""
    fixed = (Prior, Distribution)
    return {name: prior for name, prior in priors.items() if not isinstance(prior, fixed)}


def _check_elements(who: str, name: str, prior: object, constraint: Constraint) -> None:
    """Reject an elementwise prior for elements that sum to 1: it is not their joint density."""
    if isinstance(constraint, Simplex):
        n = constraint.shape[-1]
        condition = (
            f"a joint prior for {name!r}, since its elements sum to 1: "
            f"torch.distributions.Dirichlet(torch.ones({n})), or a function of the dict of "
            "parameters"
        )
        raise needs(who, "prior", condition, prior)


def _check_shape(who: str, name: str, prior: Distribution, shape: torch.Size) -> None:
    """Fail if shapes differ: torch would broadcast the parameter and count it repeatedly."""
    whole, event = prior.batch_shape + prior.event_shape, prior.event_shape
    try:
        broadcast = torch.broadcast_shapes(whole, shape)
        fits = broadcast == shape and shape[len(shape) - len(event) :] == event
    except RuntimeError:
        fits = False
    if not fits:
        condition = f"a distribution for {name!r} of shape {tuple(shape)}"
        raise needs(who, "prior", condition, f"{prior} of shape {tuple(whole)}")


def _check_support(
    who: str, name: str, prior: Distribution, constraint: Constraint, dtype: torch.dtype
) -> None:
    """Fail if a parameter takes values outside the support of its prior.

    Constraints that depend on other parameters are not checked.
    """
    try:
        support: Any = prior.support
        size = (constraint.size,)
        free = [torch.full(size, probe, dtype=dtype) for probe in _PROBES]
        values = [constraint.constrain(part, {})[0] for part in free]
    except (NotImplementedError, KeyError):
        return
    outside = [value for value in values if not support.check(value).all()]
    if outside:
        condition = f"a prior whose support has all values that {name!r} takes: {constraint}"
        example = outside[0].flatten()[:4].tolist()
        found = f"{prior} with support {support}, which does not have {example}"
        raise needs(who, "prior", condition, found)


def _prepare(
    part: Distribution | Transform, dtype: torch.dtype, done: frozenset[int] = frozenset()
) -> None:
    """Cast all tensors of a distribution, and switch its validation off, in place."""
    if id(part) in done:  # a transform and its inverse may refer to each other
        return
    if isinstance(part, Distribution):
        part._validate_args = False
    for name, value in list(vars(part).items()):
        if isinstance(value, Tensor) and value.is_floating_point():
            vars(part)[name] = value.detach().to(dtype)
        # A list holds the transforms of a TransformedDistribution.
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, Distribution | Transform):
                _prepare(entry, dtype, done | {id(part)})
