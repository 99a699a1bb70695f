"""Running moments: a mean and a variance or covariance that grow block by block, where draws are not kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Moments", "add_moments", "merge", "no_moments", "read_moments"]


class Moments(NamedTuple):
    """Running moments of each chain.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> target, init = lv.targets.gaussian([[1.0, 0.0], [0.0, 1.0]]), torch.zeros(4, 2)
        >>> samples = lv.sample(lv.sgld(0.1), target, init, num_steps=500, keep="moments", progress=False)
        >>> samples.moments.num, samples.moments.covariance.shape
        (tensor([500, 500, 500, 500]), torch.Size([4, 2, 2]))
    """

    num: Tensor  # (chain,): how many draws of each count; a chain that stopped has those before
    mean: Tensor  # (chain, dim); NaN for a chain without draws
    covariance: Tensor  # (chain, dim, dim), divided by num - 1; NaN for a chain with fewer than two draws


def merge(
    count: Tensor, mean: Tensor, spread: Tensor, more: Tensor, more_mean: Tensor, more_spread: Tensor, *, outer: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return number, mean and spread (sum of squared deviations) of two groups of draws together (Chan, Golub and LeVeque 1983).

    Numbers broadcast with the means, (..., dim). The spread is (..., dim, dim) if `outer`, else of the mean's shape.
    """
    share = more.double() / (count + more).clamp(min=1)
    gap = torch.where((more > 0).to(more_mean.device), more_mean - mean, 0.0)
    weight = count * share
    between = gap[..., :, None] * gap[..., None, :] * weight[..., None] if outer else gap * gap * weight
    return count + more, mean + gap * share, spread + more_spread + between


def no_moments(position: Tensor) -> dict[str, Tensor]:
    """Return the moments of no draws yet, as tensors for a checkpoint; chains are like `position`, (chains, dim)."""
    wide = position.double()
    return {
        "moments_count": torch.zeros(len(wide), dtype=torch.int64, device=wide.device),
        "moments_mean": torch.zeros_like(wide),
        "moments_spread": wide.new_zeros((*wide.shape, wide.shape[-1])),
    }


def add_moments(moments: Mapping[str, Tensor], positions: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Merge positions (draw, chain, dim) into running moments, in float64.

    Args:
        moments: those so far; they are not changed.
        positions: the new draws.
        counts: which of them count, (draw, chain).

    Returns:
        The moments with them.
    """
    wide = torch.where(counts[..., None], positions.double(), 0.0)
    more = counts.sum(0)[:, None]
    mean = wide.sum(0) / more.clamp(min=1)
    centred = torch.where(counts[..., None], wide - mean, 0.0).transpose(0, 1)
    before = moments["moments_count"][:, None], moments["moments_mean"], moments["moments_spread"]
    count, mean, spread = merge(*before, more, mean, centred.mT @ centred, outer=True)
    return {"moments_count": count[:, 0], "moments_mean": mean, "moments_spread": spread}


def read_moments(tensors: Mapping[str, Tensor]) -> Moments | None:
    """Return the moments in a checkpoint, or None where it has none."""
    if "moments_mean" not in tensors:
        return None
    num = tensors["moments_count"]
    mean = torch.where(num[:, None] > 0, tensors["moments_mean"], torch.nan)
    freedom = (num - 1).clamp(min=1)[:, None, None]
    return Moments(num, mean, torch.where(num[:, None, None] > 1, tensors["moments_spread"] / freedom, torch.nan))
