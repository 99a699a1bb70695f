"""Map unconstrained numbers to the values that a parameter may take, with log-Jacobians.

A constraint maps ONE vector of free numbers (size,) to a value; many run under `torch.func.vmap`.
The maps are those of Stan and of `torch.distributions.transforms`, to which the tests compare them,
but computed in logarithms: where torch rounds to a bound, at which a log density is infinite, these
stay inside the support.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad, softplus
from typing_extensions import override

from langevin.checks import check_integer, check_number, needs

__all__ = [
    "Constraint",
    "correlation_cholesky",
    "interval",
    "is_real",
    "ordered",
    "positive",
    "real",
    "simplex",
    "unit",
]

Values = Mapping[str, Tensor]
Bound = float | Callable[[Values], Tensor | float] | None


@dataclass(frozen=True)
class Constraint(ABC):
    """Define the values of a parameter, an array of `shape`; subclasses write the two maps."""

    shape: torch.Size

    @property
    def size(self) -> int:
        """The number of free numbers."""
        return self.shape.numel()

    def place(self, at: int) -> tuple[int, ...]:
        """Return the indices of the value that free number `at` maps to; ``(at,)`` if not one."""
        if self.shape.numel() != self.size:
            return (at,)
        return tuple(int(k) for k in np.unravel_index(at, tuple(self.shape)))

    @abstractmethod
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        """Return the value of free numbers (size,), and ``log |det d value / d free|``.

        Args:
            free: any numbers.
            before: the values of the preceding parameters.
        """

    @abstractmethod
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        """Return the free numbers (size,) of a value; not finite if the value is not allowed."""


@dataclass(frozen=True)
class Interval(Constraint):
    """Numbers between two bounds; see `interval`."""

    low: Bound
    high: Bound

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        free = free.view(self.shape)
        low, high = _bound(self.low, before, free), _bound(self.high, before, free)
        if low is None:
            if high is None:
                return free, free.new_zeros(())
            return high - _resolved(free.exp(), high), free.sum()
        if high is None:
            return low + _resolved(free.exp(), low), free.sum()
        width = high - low
        log_width = width.log() if isinstance(width, Tensor) else math.log(width)
        # Distances from the nearer bound keep their precision.
        lower = low + _resolved(width * free.sigmoid(), low)
        upper = high - _resolved(width * (-free).sigmoid(), high)
        value = torch.where(free < 0, lower, upper)
        return value, (log_width + logsigmoid(free) + logsigmoid(-free)).sum()

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        low, high = _bound(self.low, before, value), _bound(self.high, before, value)
        if low is None and high is None:
            return value.reshape(-1)
        above = value.new_zeros(()) if low is None else (value - low).log()
        below = value.new_zeros(()) if high is None else (high - value).log()
        return (below - above if low is None else above - below).reshape(-1)

    def __repr__(self) -> str:
        low, high = _named(self.low, "-inf"), _named(self.high, "inf")
        return f"values in ({low}, {high}) of shape {tuple(self.shape)}"


def _named(bound: Bound, none: str) -> str:
    return "a function" if callable(bound) else none if bound is None else str(bound)


def _bound(bound: Bound, before: Values, like: Tensor) -> Tensor | float | None:
    """Return a bound, given the values of the preceding parameters."""
    found = bound(before) if callable(bound) else bound
    return found.to(like) if isinstance(found, Tensor) else found


def _resolved(distance: Tensor, bound: Tensor | float) -> Tensor:
    """Return a distance large enough to change a bound to which it is added."""
    about = torch.finfo(distance.dtype)
    if isinstance(bound, Tensor):
        return distance.maximum(bound.detach().abs() * (2 * about.eps) + about.tiny)
    return distance.clamp(min=abs(bound) * (2 * about.eps) + about.tiny)


@dataclass(frozen=True)
class Ordered(Constraint):
    """Increasing numbers along the last axis; see `ordered`."""

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        free = free.view(self.shape)
        first, rest = free[..., :1], free[..., 1:]
        return torch.cat([first, rest.exp()], -1).cumsum(-1), rest.sum()

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        return torch.cat([value[..., :1], value.diff(dim=-1).log()], -1).reshape(-1)

    def __repr__(self) -> str:
        return f"increasing values of shape {tuple(self.shape)}"


@dataclass(frozen=True)
class Simplex(Constraint):
    """Positive numbers along the last axis that sum to one; see `simplex`."""

    @property
    @override
    def size(self) -> int:
        return self.shape[:-1].numel() * (self.shape[-1] - 1)

    def _offset(self, like: Tensor) -> Tensor:
        """Return shifts by which free = 0 maps to equal values."""
        return torch.arange(self.shape[-1] - 1, 0, -1, dtype=like.dtype, device=like.device).log()

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        free = free.view(*self.shape[:-1], self.shape[-1] - 1) - self._offset(free)
        log_taken, log_rest = logsigmoid(free), logsigmoid(-free)
        # What is left of the stick before each break and after the last.
        log_left = pad(log_rest.cumsum(-1), (1, 0))
        log_value = torch.cat([log_taken + log_left[..., :-1], log_left[..., -1:]], -1)
        jacobian = (log_value[..., :-1] + log_rest).sum()
        return log_value.exp().clamp(min=torch.finfo(free.dtype).tiny), jacobian

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        # What is left after each break, summed from the small end.
        rest = value.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return (value[..., :-1].log() - rest.log() + self._offset(value)).reshape(-1)

    def __repr__(self) -> str:
        return f"positive values of shape {tuple(self.shape)} that sum to 1 along the last axis"


@dataclass(frozen=True)
class CorrelationCholesky(Constraint):
    """Lower triangular, rows of length 1, positive diagonal; see `correlation_cholesky`."""

    @property
    @override
    def size(self) -> int:
        return self.shape[-1] * (self.shape[-1] - 1) // 2

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        n = self.shape[-1]
        # log(1 - tanh(x)**2): the share of a row's squared length that each element leaves.
        log_rest = 2 * (math.log(2) - free.abs() - softplus(-2 * free.abs()))
        jacobian = log_rest.sum()
        rows, values, start = [], free.tanh(), 0
        for length in range(n):
            row, rest = values[start : start + length], log_rest[start : start + length]
            log_left = pad(0.5 * rest.cumsum(-1), (1, 0))
            left = log_left.exp().clamp(min=torch.finfo(free.dtype).tiny)
            rows.append(pad(torch.cat([row * left[:-1], left[-1:]]), (0, n - 1 - length)))
            jacobian = jacobian + log_left[:-1].sum()
            start += length
        return torch.stack(rows), jacobian

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        parts = [value.new_zeros(0)]
        for length in range(1, self.shape[-1]):
            row = value[length, : length + 1]
            # Of the row's length, before each element.
            left = (row * row).flip(0).cumsum(0).flip(0).sqrt()
            parts.append((row[:-1] / left[:-1]).atanh())
        return torch.cat(parts)

    def __repr__(self) -> str:
        return f"a Cholesky factor of a correlation matrix, shape {tuple(self.shape)}"


def _shape(who: str, shape: tuple[Any, ...]) -> torch.Size:
    for length in shape:
        check_integer(who, "shape", length, 0, 2**32)
    return torch.Size(shape)


def real(*shape: int) -> Constraint:
    """Make the constraint of any numbers: none.

    Example:
        >>> real(2, 3).shape
        torch.Size([2, 3])
    """
    return Interval(_shape("real", shape), None, None)


def is_real(constraint: Constraint) -> bool:
    """Return whether a constraint is that of `real`.

    Example:
        >>> is_real(real(2)), is_real(positive())
        (True, False)
    """
    return isinstance(constraint, Interval) and constraint.low is None and constraint.high is None


def positive(*shape: int) -> Constraint:
    """Make the constraint of numbers above zero: ``exp(free)``.

    Example:
        >>> positive().constrain(torch.tensor([0.0]), {})[0]
        tensor(1.)
    """
    return Interval(_shape("positive", shape), 0.0, None)


def unit(*shape: int) -> Constraint:
    """Make the constraint of numbers between 0 and 1: ``1 / (1 + exp(-free))``.

    Example:
        >>> unit(2).constrain(torch.tensor([0.0, 100.0]), {})[0]
        tensor([0.5000, 1.0000])
    """
    return Interval(_shape("unit", shape), 0.0, 1.0)


def interval(low: Bound, high: Bound, *shape: int) -> Constraint:
    """Make the constraint of numbers between two bounds.

    ``low + (high - low) / (1 + exp(-free))``; with one bound ``low + exp(free)`` or
    ``high - exp(free)``.

    Args:
        low: a number; or, as in Stan, a function of the dict of the preceding parameters; or None
            for no bound.
        high: likewise.
        shape: of the parameter.

    Example:
        >>> stationary = interval(0, lambda p: 1 - p["alpha"])
        >>> value, log_jacobian = stationary.constrain(torch.zeros(1), {"alpha": torch.tensor(0.5)})
        >>> value, log_jacobian.exp()  # half of 0.5, and 0.5 / 4
        (tensor(0.2500), tensor(0.1250))
    """
    for name, bound in (("low", low), ("high", high)):
        if bound is not None and not callable(bound):
            condition = "a finite number, a function of the parameters before, or None"
            check_number("interval", name, bound, condition)
    if isinstance(low, int | float) and isinstance(high, int | float) and not low < high:
        raise needs("interval", "high", f"more than low = {low}", high)
    bounds = (bound if bound is None or callable(bound) else float(bound) for bound in (low, high))
    return Interval(_shape("interval", shape), *bounds)


def ordered(n: int, *rows: int) -> Constraint:
    """Make the constraint of n increasing numbers, shape (*rows, n).

    The first is free; each of the others adds ``exp(free)``.

    Example:
        >>> ordered(3).constrain(torch.tensor([1.0, 0.0, 0.0]), {})[0]
        tensor([1., 2., 3.])
    """
    check_integer("ordered", "n", n, 1, 2**32)
    return Ordered(_shape("ordered", (*rows, n)))


def simplex(n: int, *rows: int) -> Constraint:
    """Make the constraint of n positive numbers that sum to 1, shape (*rows, n).

    The map is stick breaking, with n - 1 free numbers.

    Example:
        >>> simplex(3).constrain(torch.zeros(2), {})[0]
        tensor([0.3333, 0.3333, 0.3333])
    """
    check_integer("simplex", "n", n, 2, 2**32)
    return Simplex(_shape("simplex", (*rows, n)))


def correlation_cholesky(n: int) -> Constraint:
    """Make the constraint of the Cholesky factor L of a correlation matrix ``L L^T``, (n, n).

    Its density is over the elements below the diagonal, as that of its usual prior,
    ``torch.distributions.LKJCholesky(n, 2.0)``. ``diag(scale) @ L`` is the factor of a covariance
    matrix.

    Example:
        >>> factor, log_jacobian = correlation_cholesky(2).constrain(torch.tensor([0.5]), {})
        >>> factor @ factor.mT
        tensor([[1.0000, 0.4621],
                [0.4621, 1.0000]])
    """
    check_integer("correlation_cholesky", "n", n, 2, 2**16)
    return CorrelationCholesky(torch.Size((n, n)))
