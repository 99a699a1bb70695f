"""Priors as energies with closed-form gradients, for all elements alike or per parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin import serialization
from langevin.checks import check_field, needs
from langevin.targets.elementwise_priors import (
    SCALE,
    Flat,
    GaussianPrior,
    Horseshoe,
    LaplacePrior,
    PlacedPrior,
    Prior,
    SpikeSlab,
    StudentTPrior,
    check_any_prior,
    check_prior,
    flat,
    gaussian,
    horseshoe,
    is_scale,
    laplace,
    spike_slab,
    student_t,
)

__all__ = [
    "KINDS",
    "SCALE",
    "ByName",
    "FanIn",
    "Flat",
    "GaussianPrior",
    "Gaussians",
    "Horseshoe",
    "LaplacePrior",
    "Pieces",
    "PlacedPrior",
    "Prior",
    "SpikeSlab",
    "StudentTPrior",
    "by_name",
    "check_any_prior",
    "check_prior",
    "fan_in",
    "flat",
    "from_plain",
    "gaussian",
    "horseshoe",
    "is_scale",
    "laplace",
    "on_theta",
    "place",
    "spike_slab",
    "student_t",
    "to_plain",
]


class Pieces(Prior):
    """Concatenate priors, each of some consecutive elements of theta.

    Args:
        priors: of the pieces.
        sizes: elements of each.
        shown: the representation, for messages.

    Example:
        >>> prior = Pieces([GaussianPrior(1.0), flat()], [1, 2], "a Gaussian, then nothing")
        >>> prior.gradient(torch.ones(3))
        tensor([1., 0., 0.])
    """

    def __init__(self, priors: Sequence[Prior], sizes: Sequence[int], shown: str) -> None:
        """See the class."""
        self.priors, self.sizes, self._shown = tuple(priors), list(sizes), shown

    def __repr__(self) -> str:
        return self._shown

    @override
    def energy(self, position: Tensor) -> Tensor:
        first, *rest = (prior.energy(part) for prior, part in self._parts(position))
        return sum(rest, start=first)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return torch.cat([prior.gradient(part) for prior, part in self._parts(position)], -1)

    def _parts(self, position: Tensor) -> Iterator[tuple[Prior, Tensor]]:
        return zip(self.priors, position.split(self.sizes, -1), strict=True)


class Gaussians(Pieces):
    """Concatenate Gaussians, as one vector of precisions.

    Args:
        priors: of the pieces, all Gaussian.
        sizes: elements of each.
        shown: the representation, for messages.
        like: for dtype and device.

    Example:
        >>> parts, like = [GaussianPrior(1.0), GaussianPrior(0.5)], torch.zeros(())
        >>> Gaussians(parts, [1, 2], "two scales", like).gradient(torch.ones(3))
        tensor([1., 4., 4.])
    """

    def __init__(
        self, priors: Sequence[GaussianPrior], sizes: Sequence[int], shown: str, like: Tensor
    ) -> None:
        """See the class."""
        super().__init__(priors, sizes, shown)
        pairs = list(zip((prior.std for prior in priors), sizes, strict=True))
        self.precision = torch.cat([like.new_full((size,), 1 / std**2) for std, size in pairs])
        constants = (size * (math.log(std) + 0.5 * math.log(2 * math.pi)) for std, size in pairs)
        self._constant = sum(constants)

    @override
    def energy(self, position: Tensor) -> Tensor:
        return 0.5 * (position * position * self.precision).sum(-1) + self._constant

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return position * self.precision


def place(
    prior: PlacedPrior, names: Sequence[str], shapes: Sequence[torch.Size]
) -> tuple[Prior, ...]:
    """Return the prior of each parameter.

    Example:
        >>> place(fan_in(1.0), ["weight", "bias"], [torch.Size((5, 4)), torch.Size((5,))])
        (GaussianPrior(std=0.5), GaussianPrior(std=1.0))
    """
    pairs = zip(names, shapes, strict=True)
    return tuple(check_prior(type(prior).__name__, prior.prior_for(*pair)) for pair in pairs)


def on_theta(
    who: str,
    prior: Any,
    names: Sequence[str],
    shapes: Sequence[torch.Size],
    sizes: Sequence[int],
    like: Tensor,
) -> Prior:
    """Return the prior of the whole of theta; an elementwise one is returned unchanged.

    Args:
        who: the caller, for error messages.
        prior: elementwise or per parameter.
        names: of the parameters.
        shapes: of the parameters.
        sizes: how many elements of theta each has.
        like: for dtype and device.

    Example:
        >>> prior = by_name({"weight": GaussianPrior(0.5), "*": GaussianPrior(1.0)})
        >>> names, shapes = ["weight", "bias"], [torch.Size((1, 2)), torch.Size((1,))]
        >>> whole = on_theta("Posterior", prior, names, shapes, [2, 1], torch.zeros(()))
        >>> whole.gradient(torch.ones(3))
        tensor([4., 4., 1.])
    """
    prior = check_any_prior(who, prior)
    if not isinstance(prior, PlacedPrior):
        return prior
    prior.check_names(names)
    parts = zip(place(prior, names, shapes), sizes, strict=True)
    priors: list[Prior] = []
    lengths: list[int] = []
    for piece, run in groupby(parts, key=lambda part: part[0]):
        priors.append(piece)
        lengths.append(sum(size for _, size in run))
    if len(priors) == 1:
        return priors[0]
    gaussians = [piece for piece in priors if type(piece) is GaussianPrior]
    if len(gaussians) == len(priors):
        return Gaussians(gaussians, lengths, repr(prior), like)
    return Pieces(priors, lengths, repr(prior))


_SHOWN = 20  # names in a message


@dataclass(frozen=True)
class FanIn(PlacedPrior):
    """``N(0, std**2 / fan_in)`` for weights, ``N(0, bias_std**2)`` otherwise; see `fan_in`."""

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

    priors: tuple[tuple[str, Prior | PlacedPrior], ...]  # patterns and their priors
    needs_names: ClassVar[bool] = True

    @override
    def prior_for(self, name: str, shape: torch.Size) -> Prior:
        for pattern, prior in self.priors:
            if fnmatchcase(name, pattern):
                return prior.prior_for(name, shape) if isinstance(prior, PlacedPrior) else prior
        condition = f"a pattern for the parameter {name!r} ('*' takes the rest)"
        raise needs("priors.by_name", "priors", condition, self._patterns)

    @override
    def check_names(self, names: Sequence[str]) -> None:
        def first(name: str) -> str | None:
            return next((part for part in self._patterns if fnmatchcase(name, part)), None)

        firsts = {name: first(name) for name in names}
        unmatched = [name for name in names if firsts[name] is None]
        if unmatched:
            rest = "('*' takes the rest)"
            condition = f"a pattern for every parameter {rest}, for {_some(unmatched)} too"
            raise needs("priors.by_name", "priors", condition, self._patterns)
        unused = [pattern for pattern in self._patterns if pattern not in firsts.values()]
        if unused:
            condition = (
                "patterns that some parameter matches before it matches another; the names are "
                f"{_some(names)}"
            )
            raise needs("priors.by_name", "priors", condition, unused)

    @property
    def _patterns(self) -> list[str]:
        return [pattern for pattern, _ in self.priors]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{list(names[:_SHOWN])}{more}"


def fan_in(std: float = 1.0, *, bias_std: float = 1.0) -> FanIn:
    """Make the prior ``N(0, std**2 / fan_in)`` on weights, whose scale suits any width.

    A layer's outputs are then as large as its inputs. The number of inputs is that of
    `torch.nn.init`: the product of a weight's axes but the first. ``std=2**0.5`` is He's scale for
    ReLU.

    Args:
        std: of a weight, times sqrt(fan_in).
        bias_std: standard deviation of parameters with one axis or none: biases, and the weights of
            normalisation layers.

    Example:
        >>> fan_in(std=2.0).prior_for("0.weight", torch.Size([7, 100]))
        GaussianPrior(std=0.2)
    """
    return FanIn(std, bias_std)


def by_name(priors: Mapping[str, Prior | PlacedPrior]) -> ByName:
    """Make the prior that gives each parameter that of the first pattern its name matches.

    Patterns are those of file names (`fnmatch`): ``*`` is any text, dots too, ``?`` one character.
    Names without a pattern and patterns without a name are errors. An optimizer takes names from
    ``model.named_parameters()``.

    Args:
        priors: priors by pattern, in order; `fan_in` may be among them.

    Example:
        >>> prior = by_name({"*.bias": gaussian(std=1.0), "*": fan_in()})
        >>> prior.prior_for("0.bias", torch.Size([7]))
        GaussianPrior(std=1.0)
        >>> prior.prior_for("0.weight", torch.Size([7, 100]))
        GaussianPrior(std=0.1)
    """
    who = "priors.by_name"
    if not isinstance(priors, Mapping) or not priors:
        raise needs(who, "priors", "a dict of priors by patterns of names", priors, TypeError)
    for pattern, prior in priors.items():
        if not isinstance(pattern, str):
            raise needs(who, "priors", 'patterns of names, such as "*.bias"', pattern, TypeError)
        entry: object = prior
        if isinstance(entry, ByName | type) or not isinstance(entry, Prior | PlacedPrior):
            condition = f"one of langevin.priors, no by_name itself, for {pattern!r}"
            raise needs(who, "priors", condition, entry, TypeError)
    return ByName(tuple(priors.items()))


_OWN = (Flat, GaussianPrior, SpikeSlab, LaplacePrior, StudentTPrior, Horseshoe, FanIn, ByName)
KINDS: dict[str, type] = {kind.__name__: kind for kind in _OWN}
"""The library's own priors, by the name under which they are saved."""


def to_plain(prior: Prior | PlacedPrior | None) -> dict[str, Any] | None:
    """Return one of the library's priors as plain values, for any file format.

    Example:
        >>> to_plain(by_name({"*": gaussian(std=2.0)}))
        {'kind': 'ByName', 'priors': [['*', {'kind': 'GaussianPrior', 'std': 2.0}]]}
    """
    if prior is None:
        return None
    if type(prior) not in KINDS.values():
        raise needs("to_plain", "prior", f"one of {sorted(KINDS)}", prior, TypeError)
    if isinstance(prior, ByName):
        pairs = [[pattern, to_plain(entry)] for pattern, entry in prior.priors]
        return {"kind": "ByName", "priors": pairs}
    return serialization.to_plain(prior)


def from_plain(values: dict[str, Any] | Prior | PlacedPrior | None) -> Prior | PlacedPrior | None:
    """Build the prior that `to_plain` described; a prior or None passes through.

    Example:
        >>> from_plain(to_plain(gaussian(std=0.5)))
        GaussianPrior(std=0.5)
    """
    if values is None or isinstance(values, Prior | PlacedPrior):
        return values
    if isinstance(values, dict) and values.get("kind") == "ByName":
        return by_name(_entries(values))
    return serialization.from_plain(values, KINDS)


def _entries(values: dict[str, Any]) -> dict[str, Any]:
    """Return the patterns and priors of a saved ByName."""
    pairs = values.get("priors")
    if set(values) != {"kind", "priors"} or not isinstance(pairs, list | tuple):
        raise needs("from_plain", "plain", "the arguments ['priors'] of ByName", values)
    found = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise needs("from_plain", "plain", "pairs of a pattern and a prior in ByName", pair)
        found[pair[0]] = from_plain(pair[1])
    return found
