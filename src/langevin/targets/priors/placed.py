"""Priors that differ from parameter to parameter: by the number of inputs, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from typing_extensions import override

from langevin.checks import check_field, needs
from langevin.targets.priors.base import SCALE, PlacedPrior, Prior, is_scale
from langevin.targets.priors.gaussians import GaussianPrior

__all__ = ["ByName", "FanIn", "by_name", "fan_in"]

_SHOWN = 20  # names in a message


@dataclass(frozen=True)
class FanIn(PlacedPrior):
    """``N(0, std**2 / fan_in)`` for weights, ``N(0, bias_std**2)`` for parameters of one axis or none."""

    std: float
    bias_std: float

    def __post_init__(self) -> None:
        check_field(self, "priors.fan_in", "std", SCALE, is_scale)
        check_field(self, "priors.fan_in", "bias_std", SCALE.replace("std", "bias_std"), is_scale)

    @override
    def prior_for(self, name: str, shape: torch.Size) -> Prior:
        if len(shape) < 2:
            return GaussianPrior(self.bias_std)
        return GaussianPrior(self.std / max(1, shape[1:].numel()) ** 0.5)


@dataclass(frozen=True)
class ByName(PlacedPrior):
    """The prior of the first pattern that a parameter's name matches."""

    priors: tuple[tuple[str, Prior | PlacedPrior], ...]  # patterns and what they stand for
    needs_names: ClassVar[bool] = True

    @override
    def prior_for(self, name: str, shape: torch.Size) -> Prior:
        for pattern, prior in self.priors:
            if fnmatchcase(name, pattern):
                return prior.prior_for(name, shape) if isinstance(prior, PlacedPrior) else prior
        raise needs("priors.by_name", "priors", f"a pattern for the parameter {name!r} ('*' takes the rest)", self._patterns)

    @override
    def check_names(self, names: Sequence[str]) -> None:
        firsts = [next((pattern for pattern in self._patterns if fnmatchcase(name, pattern)), None) for name in names]
        unmatched = [name for name, pattern in zip(names, firsts, strict=True) if pattern is None]
        if unmatched:
            condition = f"a pattern for every parameter ('*' takes the rest), for {_some(unmatched)} too"
            raise needs("priors.by_name", "priors", condition, self._patterns)
        unused = [pattern for pattern in self._patterns if pattern not in firsts]
        if unused:
            condition = f"patterns that some parameter matches before it matches another; the names are {_some(names)}"
            raise needs("priors.by_name", "priors", condition, unused)

    @property
    def _patterns(self) -> list[str]:
        return [pattern for pattern, _ in self.priors]


def _some(names: Sequence[str]) -> str:
    return str(list(names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def fan_in(std: float = 1.0, *, bias_std: float = 1.0) -> FanIn:
    """Make the prior ``N(0, std**2 / fan_in)`` on weights, so that a layer's outputs are as large as its inputs whatever its width.

    The number of inputs is that of `torch.nn.init`: the product of a weight's axes but the first. ``std=2**0.5`` is He's scale for
    ReLU.

    Args:
        std: of a weight, times sqrt(fan_in).
        bias_std: standard deviation of parameters with one axis or none: biases, and the weights of normalisation layers.

    Example:
        >>> fan_in(std=2.0).prior_for("0.weight", torch.Size([7, 100]))
        GaussianPrior(std=0.2)
    """
    return FanIn(std, bias_std)


def by_name(priors: Mapping[str, Prior | PlacedPrior]) -> ByName:
    """Make the prior that each parameter's name chooses: that of the first pattern which it matches.

    Patterns are those of file names (`fnmatch`): ``*`` is any text, dots too, ``?`` one character. A name that none matches, and a
    pattern that no name needs, are errors. An optimizer learns names from ``model.named_parameters()``.

    Args:
        priors: patterns, in their order, and priors; `fan_in` may be among them.

    Example:
        >>> from langevin.targets.priors import gaussian
        >>> prior = by_name({"*.bias": gaussian(std=1.0), "*": fan_in()})
        >>> prior.prior_for("0.bias", torch.Size([7])), prior.prior_for("0.weight", torch.Size([7, 100]))
        (GaussianPrior(std=1.0), GaussianPrior(std=0.1))
    """
    who = "priors.by_name"
    if not isinstance(priors, Mapping) or not priors:
        raise needs(who, "priors", "a dict of priors by patterns of names", priors, TypeError)
    for pattern, prior in priors.items():
        if not isinstance(pattern, str):
            raise needs(who, "priors", 'patterns of names, such as "*.bias"', pattern, TypeError)
        _check_entry(who, pattern, prior)
    return ByName(tuple(priors.items()))


def _check_entry(who: str, pattern: str, prior: Any) -> None:
    if isinstance(prior, ByName | type) or not isinstance(prior, Prior | PlacedPrior):
        raise needs(who, "priors", f"one of langevin.priors, no by_name itself, for {pattern!r}", prior, TypeError)
