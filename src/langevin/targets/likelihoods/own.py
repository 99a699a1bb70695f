"""A likelihood of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from langevin.checks import check_function, needs
from langevin.targets.likelihoods.base import Likelihood

__all__ = ["OwnLikelihood"]


@dataclass(frozen=True)
class OwnLikelihood(Likelihood):
    """A function of a model's outputs and targets; predictions are averages of the outputs.

    Args:
        function: takes outputs (n, ...) and targets (n, ...), returns the log-likelihood of every row, (n,).

    Example:
        >>> import torch
        >>> OwnLikelihood(lambda output, y: -(output - y).abs()).log_likelihood(torch.zeros(2), torch.tensor([1.0, 2.0]))
        tensor([-1., -2.])
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        check_function("likelihood", "function", self.function, "a function of outputs (n, ...) and targets (n, ...)", 2)

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        logs = self.function(output, y)
        if not isinstance(logs, Tensor) or logs.shape != output.shape[:1]:
            found = tuple(logs.shape) if isinstance(logs, Tensor) else type(logs).__name__
            raise needs("likelihood", "function", f"one log-likelihood per row, shape ({len(output)},)", found)
        return logs

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output
