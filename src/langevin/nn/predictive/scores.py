"""Proper scores of predictive distributions of numbers: smaller is better."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_number, needs

__all__ = ["crps", "interval_score"]


def crps(samples: Any, y: Any) -> Tensor:
    """Return the continuous ranked probability score of samples, for each row.

    ``CRPS = E|Y - y| - E|Y - Y'| / 2``, where Y and Y' are independent samples: the distance of y
    from the distribution, in units of y. It is the absolute error if all samples are equal.

    Args:
        samples: of y, (n, samples), such as those of `LangevinRegressor.sample_y`.
        y: what was observed, (n,).

    Example:
        >>> crps([[0.0, 1.0], [2.0, 2.0]], [0.0, 5.0])
        tensor([0.2500, 3.0000], dtype=torch.float64)
    """
    values, y = _as_double("crps", "samples", samples), _as_double("crps", "y", y)
    if values.ndim != y.ndim + 1 or values.shape[:-1] != y.shape or values.shape[-1] == 0:
        condition = f"shape (*{tuple(y.shape)}, samples), one row for each y"
        raise needs("crps", "samples", condition, tuple(values.shape))
    count = values.shape[-1]
    # Of sorted samples the sum of |Y - Y'| over pairs is a weighted sum.
    weight = torch.arange(1 - count, count, 2, dtype=torch.float64)
    spread = (values.sort(-1).values * weight).sum(-1) / count**2
    return (values - y[..., None]).abs().mean(-1) - spread


def interval_score(lower: Any, upper: Any, y: Any, level: float) -> Tensor:
    """Return the interval score of central intervals, for each row.

    ``upper - lower + 2 / (1 - level) * (distance of y from the interval)`` (Gneiting and Raftery
    2007): narrow intervals are better, and misses are expensive.

    Args:
        lower: lower ends, (n,).
        upper: upper ends, (n,).
        y: what was observed, (n,).
        level: the probability that the intervals are to contain, such as 0.9.

    Example:
        >>> interval_score([0.0, 0.0], [1.0, 1.0], [0.5, 1.5], level=0.9)
        tensor([ 1.0000, 11.0000], dtype=torch.float64)
    """
    who = "interval_score"
    level = check_number(who, "level", level, "0 < level < 1", lambda value: 0 < value < 1)
    low, high, y = (
        _as_double(who, name, values)
        for name, values in (("lower", lower), ("upper", upper), ("y", y))
    )
    for name, values in (("lower", low), ("upper", high)):
        if values.shape != y.shape:
            raise needs(who, name, f"the shape of y, {tuple(y.shape)}", tuple(values.shape))
    if (low > high).any():
        raise needs(who, "lower", "at most upper", low[low > high][0].item())
    missed = (low - y).clamp(min=0) + (y - high).clamp(min=0)
    return high - low + 2 / (1 - level) * missed


def _as_double(who: str, name: str, values: Any) -> Tensor:
    try:
        found = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise needs(who, name, "numbers", type(values).__name__, TypeError) from error
    if not torch.isfinite(found).all():
        raise needs(who, name, "finite numbers", found[~torch.isfinite(found)][0].item())
    return found
