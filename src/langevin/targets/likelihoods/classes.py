"""Likelihoods of classes: one of several (categorical), or yes and no (Bernoulli)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from langevin.checks import needs
from langevin.targets.likelihoods.base import Likelihood, per_row

__all__ = ["Bernoulli", "Categorical", "bernoulli", "categorical"]


@dataclass(frozen=True)
class Categorical(Likelihood):
    """``softmax(output)[y]``: outputs are logits (n, classes), targets class labels (n,)."""

    predicts = "classes"

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
    def mean(self, output: Tensor) -> Tensor:
        _check_logits(output)
        return output.softmax(-1)

    @override
    def entropy(self, probabilities: Tensor) -> Tensor:
        return -torch.special.xlogy(probabilities, probabilities).sum(-1)

    def _check_shapes(self, output: Tensor, y: Tensor) -> None:
        _check_logits(output)
        if y.dtype != torch.int64:
            raise needs("categorical", "y", "class labels of dtype torch.int64 (y.long())", y.dtype, TypeError)
        if y.shape != output.shape[:1]:
            raise needs("categorical", "y", f"one label per row, shape ({len(output)},)", tuple(y.shape))


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """``sigmoid(output)`` is the probability of y = 1: outputs are logits (n,), or (n, k) for k questions, targets 0 and 1."""

    predicts = "classes"

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        self._check_shapes(output, y)
        return per_row(logsigmoid(torch.where(y.bool(), output, -output)))

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self._check_shapes(output, y)
        bad = (y != 0) & (y != 1)
        if bad.any():
            raise needs("bernoulli", "y", "zeros and ones", y[bad][0].item())

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    @override
    def entropy(self, probabilities: Tensor) -> Tensor:
        other = 1 - probabilities
        return per_row(-torch.special.xlogy(probabilities, probabilities) - torch.special.xlogy(other, other))

    @override
    def labels(self, probabilities: Tensor) -> Tensor:
        return (probabilities > 0.5).long()

    def _check_shapes(self, output: Tensor, y: Tensor) -> None:
        if output.ndim not in (1, 2):
            raise needs("bernoulli", "model", "logits of shape (n,) or (n, k)", tuple(output.shape))
        if y.shape != output.shape:  # (n,) against (n, 1) would broadcast to (n, n)
            raise needs("bernoulli", "y", f"the shape of the model's outputs, {tuple(output.shape)}", tuple(y.shape))


def categorical() -> Categorical:
    """Make the likelihood of class labels under a softmax of the model's outputs.

    Example:
        >>> categorical().log_likelihood(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
        tensor([0.2500, 0.2500])
    """
    return Categorical()


def bernoulli() -> Bernoulli:
    """Make the likelihood of zeros and ones under a sigmoid of the model's outputs.

    Example:
        >>> bernoulli().log_likelihood(torch.zeros(2), torch.tensor([0.0, 1.0])).exp()
        tensor([0.5000, 0.5000])
    """
    return Bernoulli()


def _check_logits(output: Tensor) -> None:
    if output.ndim != 2:
        raise needs("categorical", "model", "outputs of shape (n, classes)", tuple(output.shape))
