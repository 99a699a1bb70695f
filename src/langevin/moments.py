"""Running moments of chains: a mean and a covariance that grow block by block instead of draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Moments", "add_moments", "no_moments", "read_moments"]


class Moments(NamedTuple):
    """Running moments of each chain."""

    num: int  # how many draws
    mean: Tensor  # (chain, dim)
    covariance: Tensor  # (chain, dim, dim), divided by num - 1


def no_moments(position: Tensor) -> dict[str, Tensor]:
    """Return the moments of no draws yet, as tensors for a checkpoint; chains are like `position`, (chains, dim)."""
    wide = position.double()
    return {
        "moments_count": torch.zeros((), dtype=torch.int64),
        "moments_mean": torch.zeros_like(wide),
        "moments_spread": wide.new_zeros((*wide.shape, wide.shape[-1])),
    }


def add_moments(moments: dict[str, Tensor], positions: Tensor) -> None:
    """Merge a block of positions (draw, chain, dim) into running moments, in float64 (Chan, Golub and LeVeque 1983)."""
    wide = positions.double()
    count, more = int(moments["moments_count"]), len(wide)
    mean = wide.mean(0)
    centred = (wide - mean).transpose(0, 1)
    gap = mean - moments["moments_mean"]
    moments["moments_spread"] += centred.mT @ centred + gap[:, :, None] * gap[:, None, :] * (count * more / (count + more))
    moments["moments_mean"] += gap * (more / (count + more))
    moments["moments_count"] += more


def read_moments(tensors: Mapping[str, Tensor]) -> Moments | None:
    """Return the moments in a checkpoint, or None where it has none."""
    if "moments_mean" not in tensors:
        return None
    num = int(tensors["moments_count"])
    return Moments(num, tensors["moments_mean"], tensors["moments_spread"] / max(1, num - 1))
