"""``f(x) = exp(x) E1(x)``, the horseshoe's density, and ``1 / (x f(x)) - 1``, its pull; for tensors and symbols alike.

Below 1 the series ``E1(x) = -γ - log x + x - x^2 / (2 2!) + x^3 / (3 3!) - ...``; above it a rational function of 1 / x, fitted by
tools/fit_horseshoe.py to a relative error of 2.8e-11. Each half is asked at x cut off at 1, where both have the same value. So
their product over that value is the right one on either side, in any precision; `torch.where` has no symbol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["pull", "scaled_e1"]

_EULER = 0.57721566490153286
_SERIES = tuple((-1) ** (k + 1) / (k * math.factorial(k)) for k in range(1, 17))  # of (E1(x) + γ + log x) / x; the next is 2e-16
# fmt: off
_OVER = (0.99999999997271923, 20.408942698483834, 136.18854080372344, 357.20632535163686, 354.00133130899641, 107.90851590007869,
         5.6017201152722317)
_UNDER = (1.0, 21.408942661379484, 154.59749146685949, 460.57630987096097, 558.13295427117799, 234.07488009787137,
          21.460147772855693)
# fmt: on
_AT_ONE = 0.59634736232319407  # f(1)


def _polynomial(coefficients: Sequence[float], at: Any) -> Any:
    """Horner's rule, lowest coefficient first."""
    value = coefficients[-1] * at + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        value = value * at + coefficient
    return value


def _below(x: Any) -> Any:
    """Return f(x) for x <= 1."""
    return x.exp() * (x * _polynomial(_SERIES, x) - x.log() - _EULER)


def _above(t: Any) -> Any:
    """Return 1 / (x f(x)) - 1 for t = 1 / x <= 1."""
    return t * _polynomial(_OVER, t) / _polynomial(_UNDER, t)


def scaled_e1(x: Any) -> Any:
    """Return exp(x) E1(x) for x > 0.

    Example:
        >>> import torch
        >>> scaled_e1(torch.tensor([0.5, 1.0, 100.0], dtype=torch.float64))
        tensor([0.9229, 0.5963, 0.0099], dtype=torch.float64)
    """
    t = 1 / x.clamp(min=1.0)
    return _below(x.clamp(max=1.0)) * (t / (1 + _above(t))) * (1 / _AT_ONE)


def pull(x: Any) -> Any:
    """Return ``1 / (x f(x)) - 1 = -d log f / dx`` for x > 0."""
    low = x.clamp(max=1.0)
    return (1 / (low * _below(low)) - 1) * _above(1 / x.clamp(min=1.0)) * (1 / (1 / _AT_ONE - 1))
