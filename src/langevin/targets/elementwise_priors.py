"""Priors with closed-form gradients that are the same for every element of theta."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, needs

__all__ = [
    "Flat",
    "GaussianPrior",
    "Horseshoe",
    "LaplacePrior",
    "PlacedPrior",
    "Prior",
    "SCALE",
    "SpikeSlab",
    "StudentTPrior",
    "check_any_prior",
    "check_prior",
    "flat",
    "gaussian",
    "horseshoe",
    "is_scale",
    "laplace",
    "pull",
    "scaled_e1",
    "spike_slab",
    "student_t",
]


@runtime_checkable
class Prior(Protocol):
    """Independent priors for the elements of theta.

    Example:
        >>> class Quartic:
        ...     def energy(self, position):
        ...         return (position**4).sum(-1)
        ...     def gradient(self, position):
        ...         return 4 * position**3
        >>> isinstance(Quartic(), Prior)  # any object with the two methods
        True
    """

    def energy(self, position: Tensor) -> Tensor:
        """Return ``-log prior`` summed over the last axis, with its normalising constant."""
        ...

    def gradient(self, position: Tensor) -> Tensor:
        """Return the gradient of `energy`, elementwise."""
        ...


class PlacedPrior(ABC):
    """Define a prior that depends on the name or the shape of a parameter.

    Subclasses are hashable, such as frozen dataclasses: optimizers cache the result.

    Example:
        >>> from langevin.targets import priors
        >>> priors.fan_in(2.0).prior_for("0.weight", torch.Size((5, 16)))
        GaussianPrior(std=0.5)
    """

    needs_names: ClassVar[bool] = False  # an optimizer may not have names

    @abstractmethod
    def prior_for(self, name: str, shape: torch.Size) -> Prior:
        """Return the prior of the elements of one parameter."""

    def check_names(self, names: Sequence[str]) -> None:  # noqa: B027 - optional to override
        """Fail if these, the names of all parameters, do not fit the prior."""


def check_prior(who: str, prior: Any) -> Prior:
    """Return `prior` if it is the same for every element: any object with the two methods.

    Example:
        >>> check_prior("MSGLD", 0.1)
        Traceback (most recent call last):
            ...
        TypeError: MSGLD(prior=...) needs a prior of langevin.priors, got 0.1
    """
    if isinstance(prior, PlacedPrior):
        condition = (
            "the same prior for every element: by_name and fan_in are for Posterior and the "
            "optimizers, which have names"
        )
        raise needs(who, "prior", condition, prior, TypeError)
    if isinstance(prior, type) or not isinstance(prior, Prior):
        raise needs(who, "prior", "a prior of langevin.priors", prior, TypeError)
    return prior


def check_any_prior(who: str, prior: Any) -> Prior | PlacedPrior:
    """Return `prior` if it is one, elementwise or per parameter.

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
        condition = "a prior with a hash, such as a frozen dataclass has"
        raise needs(who, "prior", condition, prior, TypeError) from error
    return prior


SCALE = "1e-150 <= std <= 1e150"
"""The condition on a standard deviation that `is_scale` tests."""


def is_scale(std: float) -> bool:
    """Return whether 1 / std**2 is a number.

    Example:
        >>> is_scale(0.1), is_scale(0.0)
        (True, False)
    """
    return 1e-150 <= std <= 1e150


_EULER = 0.57721566490153286
# Of (E1(x) + γ + log x) / x; the next coefficient is 2e-16.
_SERIES = tuple((-1) ** (k + 1) / (k * math.factorial(k)) for k in range(1, 17))
# fmt: off
# Of x (1 / (x f(x)) - 1), a rational function of 1 / x, by tools/fit_horseshoe.py.
_OVER = (0.99999999997271923, 20.408942698483834, 136.18854080372344, 357.20632535163686,
         354.00133130899641, 107.90851590007869, 5.6017201152722317)
_UNDER = (1.0, 21.408942661379484, 154.59749146685949, 460.57630987096097,
          558.13295427117799, 234.07488009787137, 21.460147772855693)
# fmt: on
_AT_ONE = 0.59634736232319407  # f(1)


def _polynomial(coefficients: Sequence[float], at: Any) -> Any:
    """Evaluate a polynomial by Horner's rule, lowest coefficient first."""
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
    """Return f(x) = exp(x) E1(x) for x > 0.

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


@dataclass(frozen=True)
class Flat(Prior):
    """No prior: energy 0.

    Example:
        >>> import torch
        >>> Flat().energy(torch.tensor([[1.0, 2.0]]))
        tensor([0.])
    """

    @override
    def energy(self, position: Tensor) -> Tensor:
        return position.new_zeros(position.shape[:-1])

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return 0 * position


@dataclass(frozen=True)
class GaussianPrior(Prior):
    """``N(0, std**2)`` for every element."""

    std: float

    def __post_init__(self) -> None:
        check_field(self, "priors.gaussian", "std", SCALE, is_scale)

    @override
    def energy(self, position: Tensor) -> Tensor:
        constant = math.log(self.std) + 0.5 * math.log(2 * math.pi)
        return ((position * position) * (0.5 / self.std**2) + constant).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return position * (1 / self.std**2)


@dataclass(frozen=True)
class SpikeSlab(Prior):
    """The mixture prior of equation (4) for every element; see `spike_slab`."""

    slab_weight: float
    slab_std: float
    spike_std: float
    log_odds: float = field(init=False)  # log of the spike's density over the slab's at zero
    precision_gap: float = field(init=False)  # 1 / spike_std**2 - 1 / slab_std**2

    def __post_init__(self) -> None:
        who = "priors.spike_slab"
        check_field(self, who, "slab_weight", "0 < slab_weight < 1", lambda v: 0 < v < 1)
        check_field(self, who, "spike_std", SCALE, is_scale)
        check_field(self, who, "slab_std", SCALE, is_scale)
        if self.spike_std >= self.slab_std:
            raise needs(who, "spike_std", f"less than slab_std = {self.slab_std}", self.spike_std)
        odds = (1 - self.slab_weight) / self.slab_weight * self.slab_std / self.spike_std
        object.__setattr__(self, "log_odds", math.log(odds))
        object.__setattr__(self, "precision_gap", 1 / self.spike_std**2 - 1 / self.slab_std**2)

    @property
    def threshold(self) -> float:
        """The smallest |theta| that is likelier under the slab than the spike (section 5.2).

        ``sqrt(log((1 - lambda) / lambda * sigma_1 / sigma_0) * 2 sigma_0**2 sigma_1**2 /
        (sigma_1**2 - sigma_0**2))``
        """
        return math.sqrt(2 * max(self.log_odds, 0.0) / self.precision_gap)

    @override
    def energy(self, position: Tensor) -> Tensor:
        def log_normal(std: float) -> Tensor:
            constant = math.log(std) + 0.5 * math.log(2 * math.pi)
            return position * position * (-0.5 / std**2) - constant

        slab = math.log(self.slab_weight) + log_normal(self.slab_std)
        spike = math.log1p(-self.slab_weight) + log_normal(self.spike_std)
        return -torch.logaddexp(slab, spike).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        # Of the two components, each with its own precision, the spike has this share at theta.
        spike_share = (self.log_odds - (0.5 * self.precision_gap) * (position * position)).sigmoid()
        return position * (1 / self.slab_std**2 + self.precision_gap * spike_share)


def flat() -> Flat:
    """Make the flat prior, whose energy is zero.

    Example:
        >>> import torch
        >>> flat().gradient(torch.ones(2))
        tensor([0., 0.])
    """
    return Flat()


def gaussian(std: float) -> GaussianPrior:
    """Make the prior N(0, std**2) on every element.

    Example:
        >>> gaussian(std=2.0).gradient(torch.tensor([4.0]))
        tensor([1.])
    """
    return GaussianPrior(std)


def spike_slab(*, slab_weight: float, slab_std: float, spike_std: float) -> SpikeSlab:
    """Make the mixture prior of equation (4), for sparse networks.

    ``slab_weight N(0, slab_std**2) + (1 - slab_weight) N(0, spike_std**2)``

    Args:
        slab_weight: lambda_k, the probability of the wide component.
        slab_std: sigma_1, its standard deviation.
        spike_std: sigma_0, that of the narrow component.

    Example:
        The paper's MNIST prior, and the size from which it counts a weight as non-zero:

        >>> prior = spike_slab(slab_weight=1e-7, slab_std=0.02**0.5, spike_std=1e-5**0.5)
        >>> round(prior.threshold, 5)
        0.01996
    """
    return SpikeSlab(slab_weight, slab_std, spike_std)


_SCALE = SCALE.replace("std", "scale")


@dataclass(frozen=True)
class LaplacePrior(Prior):
    """``exp(-|theta| / scale) / (2 scale)`` for every element; the std is sqrt(2) scale."""

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
        ratio = math.lgamma(self.df / 2) - math.lgamma((self.df + 1) / 2)
        constant = ratio + 0.5 * math.log(self.df * math.pi)
        share = (position * position) * (1 / (self.df * self.scale**2))
        return (0.5 * (self.df + 1) * share.log1p() + (constant + math.log(self.scale))).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return (self.df + 1) * position / (position * position + self.df * self.scale**2)


@dataclass(frozen=True)
class Horseshoe(Prior):
    """The horseshoe with a floor, for every element; see `horseshoe`."""

    scale: float
    floor: float

    def __post_init__(self) -> None:
        who = "priors.horseshoe"
        check_field(self, who, "scale", _SCALE, is_scale)
        check_field(self, who, "floor", "1e-6 <= floor <= 10", lambda v: 1e-6 <= v <= 10)

    def _exponent(self, position: Tensor) -> Tensor:
        return (position * position) * (0.5 / self.scale**2) + 0.5 * (self.floor * self.floor)

    @override
    def energy(self, position: Tensor) -> Tensor:
        # The integral of exp(x) E1(x) over theta is sqrt(2 pi) scale pi exp(c) erfc(sqrt(c)), where
        # c is x at theta = 0.
        c = 0.5 * self.floor**2
        constant = 0.5 * math.log(2 * math.pi) + math.log(self.scale * math.pi) + c
        constant += math.log(math.erfc(math.sqrt(c)))
        return (constant - scaled_e1(self._exponent(position)).log()).sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return position * pull(self._exponent(position)) * (1 / self.scale**2)


def laplace(scale: float) -> LaplacePrior:
    """Make the prior ``exp(-|theta| / scale) / (2 scale)`` on every element: the lasso.

    The gradient jumps at 0; Langevin steps lose accuracy within about a step's noise of 0 only.

    Example:
        >>> import torch
        >>> laplace(scale=0.5).gradient(torch.tensor([3.0, -0.1, 0.0]))
        tensor([ 2., -2.,  0.])
    """
    return LaplacePrior(scale)


def student_t(df: float, scale: float) -> StudentTPrior:
    """Make the prior ``scale * t`` on every element, with Student's t of df degrees of freedom.

    Args:
        df: above 0; 1 is the Cauchy, large values are Gaussian. The variance is finite above 2.
        scale: the standard deviation times sqrt((df - 2) / df).

    Example:
        >>> import torch
        >>> student_t(df=3.0, scale=1.0).gradient(torch.tensor([1.0, 100.0]))
        tensor([1.0000, 0.0400])
    """
    return StudentTPrior(df, scale)


def horseshoe(scale: float, *, floor: float = 0.01) -> Horseshoe:
    """Make the horseshoe on every element: it shrinks most to about 0 and leaves a few unchanged.

    ``theta ~ N(0, (scale λ)^2)`` with a half-Cauchy λ, which is integrated out:
    ``p(theta) ∝ exp(x) E1(x)``, where ``x = theta^2 / (2 scale^2)``.

    Differs from Carvalho, Polson and Scott (2010), where the density is infinite at 0, so that
    Langevin steps diverge. Here ``x = (theta^2 + delta^2) / (2 scale^2)`` with
    ``delta = floor * scale``: the same mixture of Gaussians, with the density of λ multiplied by
    ``exp(-(floor / λ)^2 / 2)``, which removes standard deviations far below delta and keeps the
    tails. The global scale is an argument, not a parameter.

    Args:
        scale: τ, the global scale.
        floor: delta / scale; the step size must suit the peak, whose width is about delta.

    Example:
        >>> import torch
        >>> horseshoe(scale=1.0).gradient(torch.tensor([0.1, 1.0, 10.0]))
        tensor([4.0776, 1.1670, 0.1962])
    """
    return Horseshoe(scale, floor)
