"""What a likelihood is: the law of the targets y given a model's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import needs

__all__ = ["LEARNED", "PREDICTED", "Likelihood", "WithScale"]

LEARNED, PREDICTED = "learned", "predicted"
"""What a scale may be beside a number: one more parameter of the model, or one more output for each output."""


class Likelihood(ABC):
    """The law of y given outputs: subclass it, write `log_likelihood` and `mean`, and say what differs from the defaults below.

    It is asked for one draw of theta at a time, under `torch.func.vmap`: torch operations only, and no look at values.

    Example:
        >>> class Exponential(Likelihood):
        ...     def log_likelihood(self, output, y):
        ...         return (output - output.exp() * y)[:, 0]
        ...     def mean(self, output):
        ...         return (-output).exp()
        >>> Exponential().loss(torch.zeros(2, 1), torch.tensor([[1.0], [2.0]]))
        tensor(1.5000)
    """

    predicts: str = "numbers"  # "classes", whose `mean` are probabilities, or "numbers"
    is_discrete: bool = False  # whether these numbers are whole

    @abstractmethod
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y_i | output_i)``, shape (n,), or fail when shapes or dtypes do not fit; values are not looked at."""

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """Return the mean of y for one draw's outputs, (n, ...): probabilities, where y are classes."""

    def check(self, output: Tensor, y: Tensor) -> None:
        """Fail when the targets do not fit the outputs in shape, dtype or value; the outputs' values do not count."""
        self.log_likelihood(output, y)

    def variance(self, output: Tensor) -> Tensor | None:
        """Return the variance of y for one draw's outputs, in the shape of `mean`; None where it is not known, and for classes."""
        return None

    def cdf(self, output: Tensor, value: Tensor) -> Tensor | None:
        """Return ``P(y <= value)`` for one draw's outputs, in the shape of `mean`; None where it is not known, and for classes."""
        return None

    def entropy(self, probabilities: Tensor) -> Tensor | None:
        """Return the entropy of y, (n,), for probabilities such as `mean` returns; None where y are numbers."""
        return None

    def labels(self, probabilities: Tensor) -> Tensor:
        """Return the most probable classes, for probabilities such as `mean` returns; where y are classes only."""
        return probabilities.argmax(-1)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model with what the likelihood itself has to learn, whose outputs are those that `log_likelihood` takes."""
        return model

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of a batch, with all constants: the loss of a training loop."""
        return -self.log_likelihood(output, y).mean()


class WithScale(nn.Module):
    """A model whose outputs get one more parameter as company: the log of a squared scale, the same for all.

    Outputs (n,) or (n, 1) become (n, 2), outputs (n, k) become (n, 2 k): first the model's, then the parameter.

    Args:
        model: what predicts the mean.
        start: of the squared scale.

    Example:
        >>> WithScale(nn.Linear(3, 1))(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, model: nn.Module, start: float = 1.0) -> None:
        """See the class."""
        super().__init__()
        like = next(model.parameters())
        self.model = model
        self.log_scale = nn.Parameter(torch.full((1,), start, dtype=like.dtype, device=like.device).log())

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the outputs beside the parameter."""
        output = self.model(*inputs, **named)
        output = output[:, None] if output.ndim == 1 else output
        return torch.cat([output, self.log_scale.expand_as(output)], -1)


def halves(who: str, output: Tensor) -> tuple[Tensor, Tensor]:
    """Split outputs (n, 2) or (n, 2 k) into two of shape (n,) or (n, k)."""
    if output.ndim != 2 or output.shape[-1] % 2 or output.shape[-1] == 0:
        raise needs(who, "model", "outputs of shape (n, 2), mean and log-variance, or (n, 2 k)", tuple(output.shape))
    if output.shape[-1] == 2:
        return output[:, 0], output[:, 1]
    first, second = output.chunk(2, -1)
    return first, second


def per_row(terms: Tensor) -> Tensor:
    """Sum the elements of each row, (n, ...) to (n,)."""
    return terms.reshape(len(terms), -1).sum(-1)
