"""The prior of each parameter of a group, where it depends on names and shapes."""

from __future__ import annotations

import functools
from typing import Any

from langevin.checks import needs
from langevin.targets.priors import PlacedPrior, Prior, check_any_prior, place

__all__ = ["check_names", "check_prior_of", "priors_of"]

_place = functools.lru_cache(maxsize=256)(place)  # asked for the same names and shapes at every step


def priors_of(who: str, group: dict[str, Any]) -> list[Prior | None] | tuple[Prior, ...]:
    """Return the prior of each parameter of a group that `check_prior_of` has passed; None is flat."""
    prior, parameters = group["prior"], group["params"]
    if not isinstance(prior, PlacedPrior):
        return [prior] * len(parameters)
    names = group.get("param_names")
    if names is None:
        if prior.needs_names:
            raise needs(who, "prior", f"parameters with names, {who}(model.named_parameters(), ...), for a prior by name", prior)
        names = [""] * len(parameters)
    return _place(prior, tuple(names), tuple(parameter.shape for parameter in parameters))


def check_prior_of(who: str, group: dict[str, Any]) -> None:
    """Fail when the prior of a group is none, or none for its parameters."""
    if group["prior"] is not None:
        check_any_prior(who, group["prior"])
    priors_of(who, group)


def check_names(groups: list[dict[str, Any]]) -> None:
    """Fail when a prior by name has a pattern that no parameter needs, in any of the groups that it is given for."""
    names: dict[PlacedPrior, list[str]] = {}
    for group in groups:
        if isinstance(group["prior"], PlacedPrior) and group.get("param_names") is not None:
            names.setdefault(group["prior"], []).extend(group["param_names"])
    for prior, known in names.items():
        prior.check_names(known)
