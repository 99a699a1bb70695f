"""Running moments of chains: a mean and a covariance that grow block by block instead of draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Moments", "add_moments", "no_moments", "read_moments"]


class Moments(NamedTuple):
    """Running moments of each chain."""

    num: Tensor  # (chain,): how many draws of each count; a chain that stopped has those before
    mean: Tensor  # (chain, dim); NaN for a chain without draws
    covariance: Tensor  # (chain, dim, dim), divided by num - 1; NaN for a chain with fewer than two draws


def no_moments(position: Tensor) -> dict[str, Tensor]:
    """Return the moments of no draws yet, as tensors for a checkpoint; chains are like `position`, (chains, dim)."""
    wide = position.double()
    return {
        "moments_count": torch.zeros(len(wide), dtype=torch.int64, device=wide.device),
        "moments_mean": torch.zeros_like(wide),
        "moments_spread": wide.new_zeros((*wide.shape, wide.shape[-1])),
    }


def add_moments(moments: Mapping[str, Tensor], positions: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Merge positions (draw, chain, dim) into running moments, in float64 (Chan, Golub and LeVeque 1983).

    Args:
        moments: those so far; they are not changed.
        positions: the new draws.
        counts: which of them count, (draw, chain).

    Returns:
        The moments with them.
    """
    wide = torch.where(counts[..., None], positions.double(), 0.0)
    before, more = moments["moments_count"], counts.sum(0)
    share = more.double() / (before + more).clamp(min=1)
    mean = wide.sum(0) / more.clamp(min=1)[:, None]
    centred = torch.where(counts[..., None], wide - mean, 0.0).transpose(0, 1)
    gap = torch.where(more[:, None] > 0, mean - moments["moments_mean"], 0.0)
    weight = (before * share)[:, None, None]
    return {
        "moments_count": before + more,
        "moments_mean": moments["moments_mean"] + gap * share[:, None],
        "moments_spread": moments["moments_spread"] + centred.mT @ centred + gap[:, :, None] * gap[:, None, :] * weight,
    }


def read_moments(tensors: Mapping[str, Tensor]) -> Moments | None:
    """Return the moments in a checkpoint, or None where it has none."""
    if "moments_mean" not in tensors:
        return None
    num = tensors["moments_count"]
    mean = torch.where(num[:, None] > 0, tensors["moments_mean"], torch.nan)
    freedom = (num - 1).clamp(min=1)[:, None, None]
    return Moments(num, mean, torch.where(num[:, None, None] > 1, tensors["moments_spread"] / freedom, torch.nan))
