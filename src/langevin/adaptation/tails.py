"""Find tails that fall like a power from the energy far out, where chains hardly ever come.

If a density falls like ``r^-(α + 1)`` along an element of theta, moments of order α and above are
infinite. Then ``r dU / dr`` tends to α + 1, while it grows without bound for lighter tails. Where
the other elements spread in proportion to r^γ there, each of them takes γ off α: so multivariate
t distributions have the index of their margins. Draws alone show such a tail too late: chains
diffuse into it so slowly that most runs see none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from langevin.diagnostics.arrays import evenly_spaced
from langevin.targets.gradients import GradientFn

__all__ = ["HEAVY", "describe_tails", "tail_indices"]

HEAVY = 3.9  # tail index below which standard deviations are reported: estimates of them have an
# infinite variance below 4
_RADII = 1e3, 1e5  # in standard deviations
_SAME = 0.05  # relative change of r dU / dr between them that a power law may show
_ELEMENTS = 100  # elements that are examined


def tail_indices(
    gradient_fn: GradientFn, centre: Tensor, width: Tensor, chains: int, temperature: float = 1.0
) -> tuple[Tensor, Tensor, int]:
    """Return the tail indices α of some elements, these elements, and the gradients per chain.

    α is infinite for tails that are lighter than any power.

    Args:
        gradient_fn: the exact gradient.
        centre: the middle of the posterior, (dim,).
        width: standard deviations, (dim,).
        chains: gradients that are computed at once.
        temperature: of the target.

    Example:
        >>> import langevin as lv
        >>> from langevin.targets.gradients import full
        >>> energy = lambda t: 2 * (t[0] ** 2 / 3).log1p() + t[1] ** 2  # t with 3 degrees; a normal
        >>> zero, one = torch.zeros(2).double(), torch.ones(2).double()
        >>> tail_indices(full(lv.targets.energy(energy)), zero, one, 4)[0].round(decimals=2)
        tensor([3., inf], dtype=torch.float64)
    """
    dim = len(centre)
    elements = evenly_spaced(dim, _ELEMENTS).to(centre.device)
    axes = torch.zeros(len(elements), dim, dtype=centre.dtype, device=centre.device)
    axes[torch.arange(len(elements)), elements] = width[elements]
    signs = (torch.arange(dim, device=centre.device) % 2 * 2 - 1) * width
    aside = torch.where(axes == 0, signs, torch.zeros_like(signs))  # a move of the other elements
    found, taken = torch.full((len(elements),), torch.inf, dtype=torch.float64), 0
    for sign in (1, -1):
        slopes, bends = [], []
        for radius in _RADII:
            out = sign * radius * axes
            places = torch.cat([centre + out, centre + out + aside])
            gradient = torch.cat([_slopes(gradient_fn, part) for part in places.split(chains)])
            taken += -(-len(places) // chains)
            here, there = gradient.double().split(len(elements))
            slopes.append((here * out).sum(1) / temperature)
            bends.append(((there - here) * aside).sum(1))
        gap = math.log(_RADII[1] / _RADII[0])
        growth = (bends[0] / bends[1]).log().div(2 * gap).nan_to_num(0.0).clamp(0.0, 1.0)
        index = slopes[1] - 1 - growth * (dim - 1)
        is_power = (slopes[1] / slopes[0] - 1).abs() < _SAME  # False for NaN
        is_power &= slopes[1] > 0
        found = torch.where(is_power, torch.minimum(found, index), found)
    return found, elements, taken


def describe_tails(
    indices: Tensor, elements: Sequence[int], name_of: Callable[[int], str]
) -> str | None:
    """Return the warning about power-law tails that affect standard deviations, or None."""
    heavy = indices < HEAVY
    if not heavy.any():
        return None
    worst = int(indices.argmin())
    index, number = float(indices[worst]), int(heavy.sum())
    name, others = name_of(elements[worst]), f" and {number - 1} more" if number > 1 else ""
    what = "mean and variance do not exist"
    if index > 1.05:
        what = "the variance is infinite, so its standard deviation means nothing"
    if index > 2.05:
        what = "estimates of the standard deviation converge slowly and are mostly too small"
    return (
        f"heavy tails: the density of {name}{others} falls like |x|^-{index + 1:.2g}, so {what}. "
        "Report medians and quantiles, or use a prior with lighter tails."
    )


def _slopes(gradient_fn: GradientFn, places: Tensor) -> Tensor:
    """Return the gradients at places that no chain may ever reach; NaN where the target raises."""
    try:
        return gradient_fn(places, 0).gradient
    except Exception:  # the user's own, such as a domain error
        return torch.full_like(places, torch.nan)
