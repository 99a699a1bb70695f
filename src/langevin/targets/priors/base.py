"""What a prior is, and what one is that has to be told where it stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from langevin.checks import needs

__all__ = ["SCALE", "PlacedPrior", "Prior", "check_any_prior", "check_prior", "is_scale"]


@runtime_checkable
class Prior(Protocol):
    """Independent priors for the elements of theta.

    Example:
        >>> class Quartic:
        ...     def energy(self, position):
        ...         return (position**4).sum(-1)
        ...     def gradient(self, position):
        ...         return 4 * position**3
        >>> isinstance(Quartic(), Prior)  # any object with the two methods, for samplers and optimizers
        True
    """

    def energy(self, position: Tensor) -> Tensor:
        """Return ``-log prior`` summed over the last axis, with its normalising constant."""
        ...

    def gradient(self, position: Tensor) -> Tensor:
        """Return the gradient of `energy`, elementwise."""
        ...


class PlacedPrior(ABC):
    """A prior that depends on where an element stands: on the name or the shape of its parameter.

    A frozen dataclass, since optimizers ask for the same parameters at every step and remember the answer.

    Example:
        >>> from langevin.targets import priors
        >>> priors.fan_in(2.0).prior_for("0.weight", torch.Size((5, 16)))
        GaussianPrior(std=0.5)
    """

    needs_names: ClassVar[bool] = False  # whether it looks at names, which an optimizer may not have

    @abstractmethod
    def prior_for(self, name: str, shape: torch.Size) -> Prior:
        """Return the prior of the elements of one parameter."""

    def check_names(self, names: Sequence[str]) -> None:  # noqa: B027 - any names will do, where a prior does not say more
        """Fail when these, the names of all parameters, are not those that it was written for."""


def check_prior(who: str, prior: Any) -> Prior:
    """Return `prior` when it is one for any element: any object with the two methods.

    Example:
        >>> check_prior("MSGLD", 0.1)
        Traceback (most recent call last):
            ...
        TypeError: MSGLD(prior=...) needs a prior of langevin.priors, got 0.1
    """
    if isinstance(prior, PlacedPrior):
        condition = "the same prior for every element: by_name and fan_in are for Posterior and the optimizers, which have names"
        raise needs(who, "prior", condition, prior, TypeError)
    if isinstance(prior, type) or not isinstance(prior, Prior):
        raise needs(who, "prior", "a prior of langevin.priors", prior, TypeError)
    return prior


def check_any_prior(who: str, prior: Any) -> Prior | PlacedPrior:
    """Return `prior` when it is one, placed or not.

    Example:
        >>> from langevin.targets import priors
        >>> check_any_prior("MSGLD", priors.fan_in(1.0))
        FanIn(std=1.0, bias_std=1.0)
    """
    if not isinstance(prior, PlacedPrior):
        return check_prior(who, prior)
    try:
        hash(prior)
    except TypeError as error:
        raise needs(who, "prior", "a prior with a hash, such as a frozen dataclass has", prior, TypeError) from error
    return prior


SCALE = "1e-150 <= std <= 1e150"
"""What a standard deviation must be for 1 / std**2 to be a number; `is_scale` says whether it is."""


def is_scale(std: float) -> bool:
    """Say whether 1 / std**2 is a number.

    Example:
        >>> is_scale(0.1), is_scale(0.0)
        (True, False)
    """
    return 1e-150 <= std <= 1e150
