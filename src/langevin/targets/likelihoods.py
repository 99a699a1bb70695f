"""Likelihoods of a model's outputs: classes (categorical) and measurements with Gaussian errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, needs
from langevin.targets.priors import SCALE, is_scale

__all__ = [
    "LIKELIHOODS",
    "Categorical",
    "GaussianLikelihood",
    "GaussianPrediction",
    "Likelihood",
    "as_likelihood",
    "categorical",
    "gaussian",
]


@runtime_checkable
class Likelihood(Protocol):
    """The law of the targets y given a model's outputs."""

    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y_i | output_i)``, shape (n,), or fail when shapes or dtypes do not fit; values are not looked at."""
        ...

    def check(self, output: Tensor, y: Tensor) -> None:
        """Fail when the targets do not fit the outputs in shape, dtype or value; the outputs' values do not count."""
        ...

    def predictive(self, output: Tensor) -> Tensor:
        """Return the mean of y for one draw's outputs: what is averaged over draws."""
        ...

    def combine(self, mean: Tensor, variance: Tensor) -> Any:
        """Return the prediction from the mean of `predictive` over draws and its variance."""
        ...


@dataclass(frozen=True)
class Categorical(Likelihood):
    """``softmax(output)[y]``: outputs are logits (n, classes), targets class labels (n,)."""

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        self._check_shapes(output, y)
        # Not cross_entropy: it counts a label of -100 as no datum at all, without a word.
        return output.log_softmax(-1).gather(-1, y[:, None])[:, 0]

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self._check_shapes(output, y)
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= output.shape[-1]:
            raise needs("categorical", "y", f"labels in [0, {output.shape[-1]}), one per output of the model", [low, high])

    @override
    def predictive(self, output: Tensor) -> Tensor:
        _check_logits(output)
        return output.softmax(-1)

    def combine(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the probabilities (n, classes)."""
        return mean

    def _check_shapes(self, output: Tensor, y: Tensor) -> None:
        _check_logits(output)
        if y.dtype != torch.int64:
            raise needs("categorical", "y", "class labels of dtype torch.int64 (y.long())", y.dtype, TypeError)
        if y.shape != output.shape[:1]:
            raise needs("categorical", "y", f"one label per row, shape ({len(output)},)", tuple(y.shape))


class GaussianPrediction(NamedTuple):
    """What is known of new targets."""

    mean: Tensor  # shape of y
    variance: Tensor  # that of the noise plus that of the draws' means, shape of y


@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """``y = output + N(0, std**2)``, independent for every element; outputs and targets are (n,) or (n, k)."""

    std: float

    def __post_init__(self) -> None:
        check_field(self, "likelihoods.gaussian", "std", SCALE, is_scale)

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        self._check_shapes(output, y)
        residual = (y - output).reshape(len(output), -1) * (1 / self.std)
        constant = math.log(self.std) + 0.5 * math.log(2 * math.pi)
        return -(0.5 * residual * residual + constant).sum(-1)

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self._check_shapes(output, y)
        if not torch.isfinite(y).all():
            raise needs("gaussian", "y", "finite targets", y[~torch.isfinite(y)][0].item())

    @override
    def predictive(self, output: Tensor) -> Tensor:
        return output

    def combine(self, mean: Tensor, variance: Tensor) -> GaussianPrediction:
        """Return the mean and the total variance."""
        return GaussianPrediction(mean, variance + self.std**2)

    def _check_shapes(self, output: Tensor, y: Tensor) -> None:
        if output.ndim not in (1, 2):
            raise needs("gaussian", "model", "outputs of shape (n,) or (n, k)", tuple(output.shape))
        if y.dtype != output.dtype:
            raise needs("gaussian", "y", f"the dtype of the model's outputs, {output.dtype}", y.dtype, TypeError)
        if y.shape != output.shape:  # (n,) against (n, 1) would broadcast to (n, n)
            raise needs("gaussian", "y", f"the shape of the model's outputs, {tuple(output.shape)}", tuple(y.shape))


def categorical() -> Categorical:
    """Make the likelihood of class labels under a softmax of the model's outputs.

    Example:
        >>> categorical().log_likelihood(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
        tensor([0.2500, 0.2500])
    """
    return Categorical()


def gaussian(std: float) -> GaussianLikelihood:
    """Make the likelihood of measurements with Gaussian errors.

    Args:
        std: of the errors.

    Example:
        >>> gaussian(std=2.0).log_likelihood(torch.tensor([1.0]), torch.tensor([1.0]))
        tensor([-1.6121])
    """
    return GaussianLikelihood(std)


LIKELIHOODS: dict[str, Likelihood] = {"categorical": categorical()}
"""The likelihoods that need no settings, by name."""


def as_likelihood(who: str, value: Any) -> Likelihood:
    """Return the likelihood of that name; a likelihood passes through."""
    found = LIKELIHOODS.get(value) if isinstance(value, str) else value
    if isinstance(found, type) or not isinstance(found, Likelihood):
        condition = f"one of {sorted(LIKELIHOODS)} or an object such as likelihoods.gaussian(std=...)"
        raise needs(who, "likelihood", condition, value, ValueError if isinstance(value, str) else TypeError)
    return found


def _check_logits(output: Tensor) -> None:
    if output.ndim != 2:
        raise needs("categorical", "model", "outputs of shape (n, classes)", tuple(output.shape))
