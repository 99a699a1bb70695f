"""Find the priors of a model that depend on other parameters, with a location and a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from langevin.checks import needs
from langevin.targets.automatic import validation
from langevin.targets.constraints import Interval
from langevin.targets.location_scale import LocationScale, location_scale
from langevin.targets.space import Space

__all__ = ["Centredness", "Conditionals", "Values", "Weights", "check_centredness"]

Centredness = float | str | Mapping[str, Any]
"""A number in [0, 1], "auto", or one of them by name; numbers may have a parameter's shape."""

Values = dict[str, Tensor]
PriorFunction = Callable[..., Any]


class Weights(NamedTuple):
    """Weights of prior and data and the anchor of each element of theta, (dim,) each."""

    prior: Tensor  # p
    data: Tensor  # q
    anchor: Tensor  # a


@dataclass(frozen=True, eq=False)
class Conditionals:
    """The priors of a target that depend on other parameters, in an order for substitution.

    Args:
        space: of the target.
        priors: functions of a dict of values that return a distribution, by name.
        order: all names; a parameter comes after those that its prior reads.
        left: why the others stay as written, by name.
    """

    space: Space
    priors: Mapping[str, PriorFunction]
    order: tuple[str, ...]
    left: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, space: Space, priors: Mapping[str, PriorFunction]) -> Conditionals:
        """Find the priors with a location and a scale that depend on other parameters.

        Args:
            space: of the target.
            priors: functions of the dict of values, by name; each is called once.

        Example:
            >>> from langevin.targets.constraints import positive, real
            >>> where = torch.float64, torch.device("cpu")
            >>> space = Space(("x", "tau"), (real(3), positive()), *where)
            >>> found = Conditionals.of(
            ...     space, {"x": lambda p: torch.distributions.Normal(0.0, p["tau"])}
            ... )
            >>> list(found.priors), found.order
            (['x'], ('tau', 'x'))
        """
        zeros = torch.zeros(space.dim, dtype=space.dtype, device=space.device)
        values, _ = space.constrain(zeros)
        constraints = dict(zip(space.names, space.constraints, strict=True))
        reads: dict[str, set[str]] = {}
        left: dict[str, str] = {}
        for name, prior in priors.items():
            seen = _Reads(values)
            try:
                with torch.no_grad(), validation(False):
                    found: object = prior(seen)
            except (AttributeError, TypeError):  # it needs more of a dict than reading
                left[name] = "what its prior reads is not known"
                continue
            parents = seen.names
            if not parents:
                continue
            if name in parents:
                left[name] = "its prior reads it"
            elif not isinstance(found, Distribution):
                left[name] = "its prior is a log density, not a distribution"
            elif location_scale(found, constraints[name]) is None:
                kind = type(found).__name__
                left[name] = f"{kind} on {constraints[name]} has no location and scale"
            else:
                reads[name] = parents
        bounds = {
            name: set(space.names[: space.names.index(name)])
            for name, constraint in constraints.items()
            if isinstance(constraint, Interval)
            and (callable(constraint.low) or callable(constraint.high))
        }
        while (order := _sorted(space.names, reads, bounds)) is None:
            name = next(reversed(reads))
            left[name] = "priors that read each other"
            del reads[name]
        return cls(space, {name: priors[name] for name in reads}, order, left)

    def prior_of(self, name: str, values: Values) -> LocationScale:
        """Return location and scale of a parameter's prior at ONE dict of values."""
        constraint = self.space.constraints[self.space.names.index(name)]
        found = location_scale(self.priors[name](values), constraint)
        assert found is not None  # the family of a distribution does not depend on values
        return found

    def weights(self, centredness: Mapping[str, Any]) -> Weights:
        """Return weights with the given centredness c: p = 1 - c, q = c; others are as written."""
        like = torch.zeros(self.space.dim, dtype=torch.float64)
        found = Weights(like.clone(), like + 1, like.clone())
        for name, value in centredness.items():
            part = self.space.slices[name]
            shape = self.space.shapes[self.space.names.index(name)]
            c = torch.as_tensor(value, dtype=torch.float64).expand(shape).reshape(-1)
            found.prior[part], found.data[part] = 1 - c, c
        return found

    def moved(self, weights: Weights) -> list[str]:
        """Return the names of the parameters with an element that is not as written."""
        return [name for name in self.priors if (weights.prior[self.space.slices[name]] > 0).any()]


class _Reads(Mapping[str, Tensor]):
    """Values that note which names are read."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.names.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _sorted(
    names: Iterable[str], reads: Mapping[str, set[str]], bounds: Mapping[str, set[str]]
) -> tuple[str, ...] | None:
    """Return the names, each after those it depends on, or None if there is a cycle."""
    left, found = list(names), []
    while left:
        ready = [
            name
            for name in left
            if not (reads.get(name, set()) | bounds.get(name, set())) & set(left) - {name}
        ]
        if not ready:
            return None
        found += ready
        left = [name for name in left if name not in ready]
    return tuple(found)


def check_centredness(who: str, centredness: Any, space: Space) -> Centredness:
    """Return `Model`'s argument, or fail if it does not fit the parameters."""
    shapes = dict(zip(space.names, space.shapes, strict=True))
    by_name = centredness if isinstance(centredness, Mapping) else {"": centredness}
    for name, value in by_name.items():
        if name and name not in shapes:
            raise needs(who, "centredness", f"names among {list(space.names)}", name)
        if isinstance(value, str) and value == "auto":
            continue
        what = 'numbers in [0, 1] or "auto"' + (f" for {name!r}" if name else "")
        try:
            numbers = torch.as_tensor(value, dtype=torch.float64)
            numbers.expand(shapes[name] if name else ())
        except (TypeError, ValueError, RuntimeError) as error:
            raise needs(who, "centredness", what, value) from error
        if not bool(((numbers >= 0) & (numbers <= 1)).all()):
            raise needs(who, "centredness", what, value)
    return centredness if isinstance(centredness, str | Mapping) else float(centredness)
