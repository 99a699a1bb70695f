"""When the moments of draws are right: the one meaning of "right within 5 %" in the checks, the tests and the documentation."""

from __future__ import annotations

from torch import Tensor

__all__ = ["DEFINITION", "ERRORS", "TOLERANCE", "allowed"]

TOLERANCE, ERRORS = 0.05, 4.0
"""How far a mean or a standard deviation may be off: a share of the posterior standard deviation, and Monte Carlo errors."""

DEFINITION = "every mean and every standard deviation is within 5 % of a posterior standard deviation and 4 Monte Carlo errors"
"""The same in words. An error of 5 % in a variance is one of 2.5 % in a standard deviation."""


def allowed(sd: Tensor, error: Tensor) -> Tensor:
    """Return the largest error of a mean or of a standard deviation that counts as right.

    Args:
        sd: the posterior standard deviation.
        error: the Monte Carlo error of the estimate.

    Example:
        >>> import torch
        >>> allowed(torch.tensor(10.0), torch.tensor(0.0))
        tensor(0.5000)
    """
    return TOLERANCE * sd + ERRORS * error
