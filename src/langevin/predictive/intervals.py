"""Credible intervals of y: quantiles of the mixture of all draws' laws, found by bisection of its distribution function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_number, needs
from langevin.targets.likelihoods import Likelihood

__all__ = ["check_levels", "quantile"]

_NUMBERS_AT_ONCE = 2**20
_DOUBLINGS = 200  # of the bracket, before a quantile counts as infinite
_RESOLUTION = 1e-8  # of a quantile, as a share of the bracket that it was found in


def check_levels(who: str, interval: Any, likelihood: Likelihood) -> tuple[float, ...]:
    """Return the levels of the intervals that are asked for."""
    if interval is None:
        return ()
    if likelihood.predicts == "classes":
        raise needs(who, "interval", "None where y are classes, whose probabilities say it all", interval)
    levels = list(interval) if isinstance(interval, Sequence) and not isinstance(interval, str) else [interval]
    if not levels:
        raise needs(who, "interval", "at least one level", interval)
    return tuple(check_number(who, "interval", level, "0 < interval < 1", lambda value: 0 < value < 1) for level in levels)


def quantile(who: str, likelihood: Likelihood, outputs: Tensor, probability: float) -> Tensor:
    """Return the smallest value with ``average over draws of P(y <= value) >= probability``, shape of y, in float64.

    Args:
        who: the caller, for errors.
        likelihood: of y given outputs; it must know its distribution function.
        outputs: of all draws, (draws, n, ...).
        probability: in (0, 1).

    Returns:
        Quantiles (n, ...), exact to eight digits of the width of the mixture; for counts whole numbers.

    Example:
        >>> from langevin.targets.likelihoods import gaussian
        >>> quantile("predict", gaussian(std=1.0), torch.tensor([[-3.0], [3.0]]), 0.75)
        tensor([3.0000], dtype=torch.float64)
    """
    rows = max(1, _NUMBERS_AT_ONCE // max(1, outputs[:, :1].numel()))
    return torch.cat([_quantile(who, likelihood, part.double(), probability) for part in outputs.split(rows, 1)])


def _quantile(who: str, likelihood: Likelihood, outputs: Tensor, probability: float) -> Tensor:
    flat, shape = outputs.flatten(0, 1), outputs.shape[:2]

    def reaches(value: Tensor) -> Tensor:
        """Say where the mixture's distribution function is at least `probability`."""
        below = likelihood.cdf(flat, value.expand(len(outputs), *value.shape).flatten(0, 1))
        if below is None:
            raise needs(who, "interval", "a likelihood with a distribution function (cdf)", likelihood)
        return below.unflatten(0, shape).mean(0) >= probability

    means, variance = likelihood.mean(flat).unflatten(0, shape), likelihood.variance(flat)
    low, high = means.amin(0), means.amax(0)
    known = torch.isfinite(low) & torch.isfinite(high)
    low, high = low.where(known, 0.0), high.where(known, 0.0)
    scale = torch.ones_like(low) if variance is None else variance.unflatten(0, shape).amax(0).sqrt()
    unit = high - low + scale.where(torch.isfinite(scale) & (scale > 0), 1.0)
    if likelihood.is_discrete:
        low, high, unit = low.floor(), high.ceil(), unit.ceil()
    step = unit
    for _ in range(_DOUBLINGS):  # a bracket: low is below the quantile, high is not
        is_high, is_low = known & reaches(low), known & ~reaches(high)
        if not (is_high | is_low).any():
            break
        low, high, step = torch.where(is_high, low - step, low), torch.where(is_low, high + step, high), 2 * step
    resolution = torch.ones_like(unit) if likelihood.is_discrete else _RESOLUTION * unit
    while (wide := known & (high - low > resolution)).any():
        middle = (low + high) / 2
        middle = middle.floor() if likelihood.is_discrete else middle
        if not (wide & (low < middle) & (middle < high)).any():  # neighbours among floats
            break
        reached = reaches(middle)
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high.where(known, torch.nan)
