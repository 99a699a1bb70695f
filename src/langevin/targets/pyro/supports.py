"""Translate the supports of Pyro's distributions to constraints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import constraints as supports
from torch import Tensor
from torch.distributions import Transform, biject_to
from typing_extensions import override

from langevin.checks import needs
from langevin.targets.constraints import (
    Bound,
    Constraint,
    Interval,
    Values,
    correlation_cholesky,
    ordered,
    simplex,
)
from langevin.targets.pyro.trace import WHO

__all__ = ["Subset", "as_constraint", "ends", "feasible"]

End = Tensor | float | None


@dataclass(frozen=True)
class Bijected(Constraint):
    """Values of a support that torch's or Pyro's `biject_to` maps free numbers to."""

    free_shape: torch.Size
    bijection: Transform

    @property
    @override
    def size(self) -> int:
        return self.free_shape.numel()

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        free = free.view(self.free_shape)
        value = self.bijection(free)
        return value, self.bijection.log_abs_det_jacobian(free, value).sum()

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        return self.bijection.inv(value).reshape(-1)

    def __repr__(self) -> str:
        return f"values of {self.bijection} of shape {tuple(self.shape)}"


@dataclass(frozen=True, eq=False)
class Subset(Constraint):
    """Sample some free numbers of a constraint; the others are 0."""

    whole: Constraint
    index: Tensor  # of the sampled free numbers

    __eq__, __hash__ = object.__eq__, object.__hash__  # tensors have no truth value

    @property
    @override
    def size(self) -> int:
        return len(self.index)

    @override
    def place(self, at: int) -> tuple[int, ...]:
        return self.whole.place(int(self.index[at]))

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(self.whole.size, dtype=free.dtype)
        return self.whole.constrain(zeros.scatter(0, self.index, free), before)

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        return self.whole.unconstrain(value, before)[self.index]

    def __repr__(self) -> str:
        return f"{self.size} elements of {self.whole}"


def ends(support: Any) -> tuple[End, End] | None:
    """Return the bounds of an interval, half-line or line; None for other supports."""
    support = _base(support)
    if isinstance(support, type(supports.real)):
        return None, None
    if isinstance(support, supports.greater_than | supports.greater_than_eq):
        return support.lower_bound, None
    if isinstance(support, supports.less_than):
        return None, support.upper_bound
    if isinstance(support, supports.interval | supports.half_open_interval):
        return support.lower_bound, support.upper_bound
    return None


def _base(support: Any) -> Any:
    """Return the support of one element, inside batches, events and mixtures."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def feasible(name: str, fn: Any, numbers: Callable[[int], Tensor]) -> Tensor:
    """Return a value in the support of a distribution.

    Args:
        name: of the site, for errors.
        fn: the distribution.
        numbers: returns so many unconstrained numbers.
    """
    bijection = _bijection(name, fn)
    free_shape = bijection.inverse_shape(fn.shape())
    return bijection(numbers(free_shape.numel()).view(free_shape))


def as_constraint(
    name: str, found: Sequence[Any], bound: Callable[[int], Callable[[Values], Any]]
) -> Constraint:
    """Return the constraint of a latent site.

    Args:
        name: of the site.
        found: its distributions in several runs.
        bound: returns a function of the preceding values that gives the lower (0) or upper (1)
            bound, for supports that depend on other sites.
    """
    shape = found[0].shape()
    pairs = [ends(fn.support) for fn in found]
    if all(pair is not None for pair in pairs):
        low, high = (_bound([pair[k] for pair in pairs if pair], bound(k)) for k in (0, 1))
        return Interval(shape, low, high)
    bijections = [_bijection(name, fn) for fn in found]
    free_shape = bijections[0].inverse_shape(shape)
    made = Bijected(shape, free_shape, bijections[0])
    try:
        free = torch.linspace(-1.0, 1.0, made.size)
        values = [Bijected(shape, free_shape, each).constrain(free, {}) for each in bijections]
    except NotImplementedError as error:
        raise _unsupported(name, found[0].support) from error
    if any(not torch.equal(value, values[0][0]) for value, _ in values):
        condition = (
            f"a support of {name!r} that does not depend on other sites, or an interval whose "
            "bounds do"
        )
        raise needs(WHO, "model", condition, found[0].support)
    return _own(found[0].support, shape) or made


def _own(support: Any, shape: torch.Size) -> Constraint | None:
    """Return the library's constraint of the same map, which keeps its precision in the tails."""
    support = _base(support)
    if isinstance(support, type(supports.simplex)) and shape[-1] > 1:
        return simplex(shape[-1], *shape[:-1])
    if isinstance(support, type(supports.ordered_vector)):
        return ordered(shape[-1], *shape[:-1])
    if isinstance(support, type(supports.corr_cholesky)) and len(shape) == 2 and shape[-1] > 1:
        return correlation_cholesky(shape[-1])
    return None


def _bound(found: Sequence[End], dependent: Callable[[Values], Any]) -> Bound:
    """Return a bound as a number, a constant tensor, or a function of the preceding values."""
    first = found[0]
    if first is None or isinstance(first, int | float):
        return first if all(each == first for each in found) else dependent
    tensors = [torch.as_tensor(each).detach() for each in found]
    if any(not torch.equal(each, tensors[0]) for each in tensors):
        return dependent
    if bool((tensors[0] == tensors[0].flatten()[0]).all()):
        return float(tensors[0].flatten()[0])
    return functools.partial(_constant, tensors[0])


def _constant(value: Tensor, before: Values) -> Tensor:
    return value


def _bijection(name: str, fn: Any) -> Transform:
    support = fn.support
    try:
        bijection: Transform = biject_to(_base(support))
    except NotImplementedError as error:
        raise _unsupported(name, support) from error
    return bijection


def _unsupported(name: str, support: Any) -> Exception:
    condition = (
        f"a support of {name!r} with a bijection from unconstrained numbers (for a covariance "
        "matrix, sample scales and an LKJCholesky factor)"
    )
    return needs(WHO, "model", condition, support)
