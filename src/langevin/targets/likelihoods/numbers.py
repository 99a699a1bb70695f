"""Likelihoods of measurements: errors that are Gaussian or Student-t, of a known, a learned or a predicted scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from typing_extensions import override

from langevin.checks import check_field, check_number, needs
from langevin.targets.likelihoods.base import LEARNED, PREDICTED, Likelihood, WithScale, halves, per_row
from langevin.targets.priors import SCALE, is_scale

__all__ = ["GaussianLikelihood", "StudentTLikelihood", "gaussian", "student_t"]


class _Measured(Likelihood):
    """``y = mean + scale * error``; a subclass says what law the errors have."""

    name: ClassVar[str]  # of the function that builds it
    scale_name: ClassVar[str]  # of its scale

    @property
    def _scale(self) -> float | str:
        return getattr(self, self.scale_name)

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        return WithScale(model) if self._scale == LEARNED else model

    @override
    def mean(self, output: Tensor) -> Tensor:
        return self._mean_and_log_square(output)[0]

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self._parts(output, y)
        if not torch.isfinite(y).all():
            raise needs(self.name, "y", "finite targets", y[~torch.isfinite(y)][0].item())

    def _mean_and_log_square(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log of the squared scale, both of the shape of y."""
        if isinstance(self._scale, str):
            return halves(self.name, output)
        if output.ndim not in (1, 2):
            raise needs(self.name, "model", "outputs of shape (n,) or (n, k)", tuple(output.shape))
        return output, torch.full_like(output, 2 * math.log(self._scale))

    def _parts(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(y - mean)^2 / scale^2`` and the log of the squared scale."""
        mean, log_square = self._mean_and_log_square(output)
        if y.dtype != output.dtype:
            raise needs(self.name, "y", f"the dtype of the model's outputs, {output.dtype}", y.dtype, TypeError)
        if y.shape != mean.shape:  # (n,) against (n, 1) would broadcast to (n, n)
            what = "outputs" if mean is output else "predicted means"
            raise needs(self.name, "y", f"the shape of the model's {what}, {tuple(mean.shape)}", tuple(y.shape))
        return (y - mean).square() * torch.exp(-log_square), log_square


@dataclass(frozen=True)
class GaussianLikelihood(_Measured):
    """``y = mean + N(0, std^2)``, independent for every element; use `gaussian` to build one."""

    std: float | str
    within: tuple[float, float] | None = None  # between which a std that is no number stays
    name = "gaussian"
    scale_name = "std"

    def __post_init__(self) -> None:
        _check_scale(self)
        if self.within is not None:
            _check_within(self)

    @override
    def _mean_and_log_square(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_square = super()._mean_and_log_square(output)
        if self.within is None:
            return mean, log_square
        low, high = (2 * math.log(std) for std in self.within)
        below = high - softplus(high - log_square)
        return mean, low + softplus(below - low)

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        square, log_square = self._parts(output, y)
        return -0.5 * per_row(square + log_square + math.log(2 * math.pi))

    @override
    def variance(self, output: Tensor) -> Tensor:
        return self._mean_and_log_square(output)[1].exp()

    @override
    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        mean, log_square = self._mean_and_log_square(output)
        return torch.special.ndtr((value - mean) * torch.exp(-0.5 * log_square))


@dataclass(frozen=True)
class StudentTLikelihood(_Measured):
    """``y = mean + scale * t``, t of a Student-t law with df degrees of freedom; use `student_t` to build one."""

    df: float
    scale: float | str
    name = "student_t"
    scale_name = "scale"

    def __post_init__(self) -> None:
        check_field(self, "likelihoods.student_t", "df", "0 < df <= 1e6 (more is a Gaussian)", lambda v: 0 < v <= 1e6)
        _check_scale(self)

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        square, log_square = self._parts(output, y)
        constant = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - 0.5 * math.log(self.df * math.pi)
        return per_row(constant - 0.5 * log_square - 0.5 * (self.df + 1) * torch.log1p(square / self.df))

    @override
    def variance(self, output: Tensor) -> Tensor:
        # Infinite up to two degrees of freedom.
        factor = self.df / (self.df - 2) if self.df > 2 else math.inf
        return self._mean_and_log_square(output)[1].exp() * factor

    @override
    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        mean, log_square = self._mean_and_log_square(output)
        error = (value - mean) * torch.exp(-0.5 * log_square)
        from scipy.stats import t  # type: ignore[import-untyped] # a second to import; torch has no incomplete beta function

        return torch.as_tensor(t.cdf(error.detach().cpu().numpy(), self.df), dtype=output.dtype, device=output.device)


def gaussian(std: float | str, *, within: tuple[float, float] | None = None) -> GaussianLikelihood:
    """Make the likelihood of measurements with Gaussian errors.

    Args:
        std: of the errors. A number: then outputs and y have the same shape, (n,) or (n, k). "learned": one number for all rows,
            which becomes a parameter of the model (``model = likelihood.wrap(model)``; `Posterior` does it by itself). "predicted":
            the network has outputs (n, 2) for y (n,), or (n, 2 k) for y (n, k): first the mean, then the log of the variance.
        within: (low, high), a std that is learned or predicted stays between. The log l of the variance is then
            ``L + softplus(H - softplus(H - l) - L)``, L and H those of the two: nearly l between them, flat beyond. Without it a
            few draws of a network may predict any noise where there are no data, and outweigh all others in the variance.

    Example:
        >>> gaussian(std=2.0).log_likelihood(torch.tensor([1.0]), torch.tensor([1.0]))
        tensor([-1.6121])
        >>> gaussian("predicted").log_likelihood(torch.tensor([[1.0, 4.0]]).log(), torch.tensor([0.0]))
        tensor([-1.6121])
    """
    return GaussianLikelihood(std, within)


def student_t(df: float = 4.0, scale: float | str = LEARNED) -> StudentTLikelihood:
    """Make the likelihood of measurements of which some lie far off: errors have a Student-t law.

    Args:
        df: degrees of freedom; the fewer, the further off.
        scale: of the errors, as the std of `gaussian`: a number, "learned" or "predicted" (then as the log of its square).

    Example:
        >>> student_t(df=3.0, scale=1.0).log_likelihood(torch.tensor([1.0]), torch.tensor([1.0]))
        tensor([-1.0009])
    """
    return StudentTLikelihood(df, scale)


def _check_within(likelihood: GaussianLikelihood) -> None:
    who, within = "likelihoods.gaussian", likelihood.within
    if not isinstance(likelihood.std, str):
        raise needs(who, "within", "None where std is a number", within)
    if not isinstance(within, tuple) or len(within) != 2:
        raise needs(who, "within", "a pair (low, high) of standard deviations", within, TypeError)
    low, high = (check_number(who, "within", value, SCALE.replace("std", "within"), is_scale) for value in within)
    if not low < high:
        raise needs(who, "within", "low < high", within)


def _check_scale(likelihood: Any) -> None:
    who, name = f"likelihoods.{likelihood.name}", likelihood.scale_name
    value = getattr(likelihood, name)
    if isinstance(value, str):
        if value not in (LEARNED, PREDICTED):
            raise needs(who, name, f'a number, "{LEARNED}" or "{PREDICTED}"', value)
        return
    object.__setattr__(likelihood, name, check_number(who, name, value, SCALE.replace("std", name), is_scale))
