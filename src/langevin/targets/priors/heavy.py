"""Priors with heavier tails than a Gaussian's: Laplace, Student-t, and the horseshoe."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field
from langevin.targets.priors.base import SCALE, Prior, is_scale
from langevin.targets.priors.exponential_integral import pull, scaled_e1

__all__ = ["Horseshoe", "LaplacePrior", "StudentTPrior", "horseshoe", "laplace", "student_t"]

_SCALE = SCALE.replace("std", "scale")


@dataclass(frozen=True)
class LaplacePrior(Prior):
    """``exp(-|theta| / scale) / (2 scale)`` for every element; its standard deviation is sqrt(2) scale."""

    scale: float

    def __post_init__(self) -> None:
        check_field(self, "priors.laplace", "scale", _SCALE, is_scale)

    @override
    def energy(self, position: Tensor) -> Tensor:
        return (position.abs() * (1 / self.scale) + math.log(2 * self.scale)).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return position.sign() * (1 / self.scale)


@dataclass(frozen=True)
class StudentTPrior(Prior):
    """Student's t with df degrees of freedom, times scale, for every element."""

    df: float
    scale: float

    def __post_init__(self) -> None:
        check_field(self, "priors.student_t", "df", "0 < df <= 1e6", lambda v: 0 < v <= 1e6)
        check_field(self, "priors.student_t", "scale", _SCALE, is_scale)

    @override
    def energy(self, position: Tensor) -> Tensor:
        constant = math.lgamma(self.df / 2) - math.lgamma((self.df + 1) / 2) + 0.5 * math.log(self.df * math.pi)
        share = (position * position) * (1 / (self.df * self.scale**2))
        return (0.5 * (self.df + 1) * share.log1p() + (constant + math.log(self.scale))).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return (self.df + 1) * position / (position * position + self.df * self.scale**2)


@dataclass(frozen=True)
class Horseshoe(Prior):
    """The horseshoe with a floor: ``exp(x) E1(x)`` with ``x = (theta^2 + delta^2) / (2 scale^2)`` and ``delta = floor * scale``."""

    scale: float
    floor: float

    def __post_init__(self) -> None:
        check_field(self, "priors.horseshoe", "scale", _SCALE, is_scale)
        check_field(self, "priors.horseshoe", "floor", "1e-6 <= floor <= 10", lambda v: 1e-6 <= v <= 10)

    def _exponent(self, position: Tensor) -> Tensor:
        return (position * position) * (0.5 / self.scale**2) + 0.5 * (self.floor * self.floor)

    @override
    def energy(self, position: Tensor) -> Tensor:
        # The integral of exp(x) E1(x) over theta is sqrt(2 pi) scale pi exp(c) erfc(sqrt(c)), where c is x at theta = 0.
        c = 0.5 * self.floor**2
        constant = 0.5 * math.log(2 * math.pi) + math.log(self.scale * math.pi) + c + math.log(math.erfc(math.sqrt(c)))
        return (constant - scaled_e1(self._exponent(position)).log()).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return position * pull(self._exponent(position)) * (1 / self.scale**2)


def laplace(scale: float) -> LaplacePrior:
    """Make the prior ``exp(-|theta| / scale) / (2 scale)`` on every element; weight decay in the norm L1, the lasso.

    Its gradient jumps at 0, which costs Langevin steps accuracy within about a step's noise of it, and nothing elsewhere.

    Example:
        >>> import torch
        >>> laplace(scale=0.5).gradient(torch.tensor([3.0, -0.1, 0.0]))
        tensor([ 2., -2.,  0.])
    """
    return LaplacePrior(scale)


def student_t(df: float, scale: float) -> StudentTPrior:
    """Make the prior of Student's t, ``scale`` times t with ``df`` degrees of freedom, on every element.

    Args:
        df: above 0; 1 is the Cauchy, large ones are Gaussian. The variance is finite above 2.
        scale: its scale, which is the standard deviation times sqrt((df - 2) / df).

    Example:
        >>> import torch
        >>> student_t(df=3.0, scale=1.0).gradient(torch.tensor([1.0, 100.0]))
        tensor([1.0000, 0.0400])
    """
    return StudentTPrior(df, scale)


def horseshoe(scale: float, *, floor: float = 0.01) -> Horseshoe:
    """Make the horseshoe on every element: most are shrunk to about 0, and a few are left as they are.

    ``theta ~ N(0, (scale λ)^2)`` with a half-Cauchy λ, which is integrated out: ``p(theta) ∝ exp(x) E1(x)``, where
    ``x = theta^2 / (2 scale^2)``.

    Differs from the published one (Carvalho, Polson and Scott, 2010): its density is infinite at 0, which no Langevin step
    survives. Here ``x = (theta^2 + delta^2) / (2 scale^2)`` with ``delta = floor * scale``. That is the same mixture of Gaussians,
    with the law of λ multiplied by ``exp(-(floor / λ)^2 / 2)``: standard deviations far below delta are left out, the tails are
    the same. And the global scale is given, not learnt.

    Args:
        scale: τ, the global scale.
        floor: delta / scale; the step size has to suit the peak, whose width is about delta.

    Example:
        >>> import torch
        >>> horseshoe(scale=1.0).gradient(torch.tensor([0.1, 1.0, 10.0]))
        tensor([4.0776, 1.1670, 0.1962])
    """
    return Horseshoe(scale, floor)
