"""What values a parameter may take, and how all of R^n is mapped onto them, with the log-Jacobian of the map.

A constraint maps ONE vector of free numbers (size,) to a value; many run under `torch.func.vmap`. The maps are those of Stan and of
`torch.distributions.transforms`, to which the tests compare them, written in logarithms: where torch's end at a bound, and a log
density is infinite, these stay inside the support.
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

__all__ = ["Constraint", "correlation_cholesky", "interval", "ordered", "positive", "real", "simplex", "unit"]

Values = Mapping[str, Tensor]
Bound = float | Callable[[Values], Tensor | float] | None


@dataclass(frozen=True)
class Constraint(ABC):
    """The values a parameter may take, an array of `shape`; subclass it and write the two maps."""

    shape: torch.Size

    @property
    def size(self) -> int:
        """The number of free numbers."""
        return self.shape.numel()

    def place(self, at: int) -> tuple[int, ...]:
        """Return the indices of the value that a free number stands for, or its own number where it stands for no single one."""
        return tuple(int(k) for k in np.unravel_index(at, tuple(self.shape))) if self.shape.numel() == self.size else (at,)

    @abstractmethod
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        """Return the value that free numbers (size,) stand for, and ``log |det d value / d free|``.

        Args:
            free: any numbers.
            before: the values of the parameters that come before this one.
        """

    @abstractmethod
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        """Return the free numbers (size,) that stand for a value; not finite where the value is none that is allowed."""


@dataclass(frozen=True)
class Interval(Constraint):
    """Numbers between two bounds, either of which may be missing (None) or a function of the parameters before; see `interval`."""

    low: Bound
    high: Bound

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        free = free.view(self.shape)
        low, high = _bound(self.low, before, free), _bound(self.high, before, free)
        if low is None:
            if high is None:
                return free, free.new_zeros(())
            return high - _off(free.exp(), high), free.sum()
        if high is None:
            return low + _off(free.exp(), low), free.sum()
        width = high - low
        log_width = width.log() if isinstance(width, Tensor) else math.log(width)
        # Each half is measured from the bound that it is close to, where a small distance is not lost beside 1.
        value = torch.where(free < 0, low + _off(width * free.sigmoid(), low), high - _off(width * (-free).sigmoid(), high))
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
        low, high = ("-inf" if self.low is None else self.low), ("inf" if self.high is None else self.high)
        return f"values in ({_named(low)}, {_named(high)}) of shape {tuple(self.shape)}"


def _named(bound: Any) -> str:
    return "a function" if callable(bound) else str(bound)


def _bound(bound: Bound, before: Values, like: Tensor) -> Tensor | float | None:
    """Return a bound where the parameters before have their values."""
    found = bound(before) if callable(bound) else bound
    return found.to(like) if isinstance(found, Tensor) else found


def _off(distance: Tensor, bound: Tensor | float) -> Tensor:
    """Return a distance from a bound that is not lost when it is added to it."""
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
        """Return the log of the number of pieces that are left after each break: at free = 0 all are equally long."""
        return torch.arange(self.shape[-1] - 1, 0, -1, dtype=like.dtype, device=like.device).log()

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        free = free.view(*self.shape[:-1], self.shape[-1] - 1) - self._offset(free)
        log_taken, log_rest = logsigmoid(free), logsigmoid(-free)
        log_left = pad(log_rest.cumsum(-1), (1, 0))  # of the stick, before each break and after the last
        log_value = torch.cat([log_taken + log_left[..., :-1], log_left[..., -1:]], -1)
        jacobian = (log_value[..., :-1] + log_rest).sum()
        return log_value.exp().clamp(min=torch.finfo(free.dtype).tiny), jacobian

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        rest = value.flip(-1).cumsum(-1).flip(-1)[..., 1:]  # what is left after each break, summed from the small end
        return (value[..., :-1].log() - rest.log() + self._offset(value)).reshape(-1)

    def __repr__(self) -> str:
        return f"positive values of shape {tuple(self.shape)} that sum to 1 along the last axis"


@dataclass(frozen=True)
class CorrelationCholesky(Constraint):
    """Lower triangular L with a positive diagonal and rows of length 1; see `correlation_cholesky`."""

    @property
    @override
    def size(self) -> int:
        return self.shape[-1] * (self.shape[-1] - 1) // 2

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        n = self.shape[-1]
        # log(1 - tanh(x)**2): what is left of a row's squared length after each element, of the part that was left before it.
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
            left = (row * row).flip(0).cumsum(0).flip(0).sqrt()  # of the row's length, before each element
            parts.append((row[:-1] / left[:-1]).atanh())
        return torch.cat(parts)

    def __repr__(self) -> str:
        return f"a Cholesky factor of a correlation matrix, shape {tuple(self.shape)}"


def _shape(who: str, shape: tuple[Any, ...]) -> torch.Size:
    for length in shape:
        check_integer(who, "shape", length, 0, 2**32)
    return torch.Size(shape)


def real(*shape: int) -> Constraint:
    """Any numbers.

    Example:
        >>> real(2, 3).shape
        torch.Size([2, 3])
    """
    return Interval(_shape("real", shape), None, None)


def positive(*shape: int) -> Constraint:
    """Numbers above zero: ``exp(free)``.

    Example:
        >>> positive().constrain(torch.tensor([0.0]), {})[0]
        tensor(1.)
    """
    return Interval(_shape("positive", shape), 0.0, None)


def unit(*shape: int) -> Constraint:
    """Numbers between 0 and 1: ``1 / (1 + exp(-free))``.

    Example:
        >>> unit(2).constrain(torch.tensor([0.0, 100.0]), {})[0]
        tensor([0.5000, 1.0000])
    """
    return Interval(_shape("unit", shape), 0.0, 1.0)


def interval(low: Bound, high: Bound, *shape: int) -> Constraint:
    """Numbers between two bounds: ``low + (high - low) / (1 + exp(-free))``; with one, ``low + exp(free)`` or ``high - exp(free)``.

    Args:
        low: a number; or a function of the dict of the parameters that come before this one, as Stan allows; or None for no bound.
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
            check_number("interval", name, bound, "a finite number, a function of the parameters before, or None")
    if isinstance(low, int | float) and isinstance(high, int | float) and not low < high:
        raise needs("interval", "high", f"more than low = {low}", high)
    bounds = (bound if bound is None or callable(bound) else float(bound) for bound in (low, high))
    return Interval(_shape("interval", shape), *bounds)


def ordered(n: int, *rows: int) -> Constraint:
    """Increasing numbers, n of them: the first is free, each next adds ``exp(free)``; shape (*rows, n).

    Example:
        >>> ordered(3).constrain(torch.tensor([1.0, 0.0, 0.0]), {})[0]
        tensor([1., 2., 3.])
    """
    check_integer("ordered", "n", n, 1, 2**32)
    return Ordered(_shape("ordered", (*rows, n)))


def simplex(n: int, *rows: int) -> Constraint:
    """Positive numbers, n of them, that sum to 1, by breaking a stick n - 1 times; shape (*rows, n).

    Example:
        >>> simplex(3).constrain(torch.zeros(2), {})[0]
        tensor([0.3333, 0.3333, 0.3333])
    """
    check_integer("simplex", "n", n, 2, 2**32)
    return Simplex(_shape("simplex", (*rows, n)))


def correlation_cholesky(n: int) -> Constraint:
    """The Cholesky factor L of a correlation matrix ``L L^T``, (n, n); its density is over the elements below the diagonal.

    So ``torch.distributions.LKJCholesky(n, 2.0)`` is a prior for it, and ``tril(scale) @ L`` that of a covariance matrix.

    Example:
        >>> factor, log_jacobian = correlation_cholesky(2).constrain(torch.tensor([0.5]), {})
        >>> factor @ factor.mT
        tensor([[1.0000, 0.4621],
                [0.4621, 1.0000]])
    """
    check_integer("correlation_cholesky", "n", n, 2, 2**16)
    return CorrelationCholesky(torch.Size((n, n)))
