"""Do the chains agree, and how many independent draws are they worth: R-hat and ESS of many elements at once, in milliseconds.

The formulas are those of Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Rank-normalization, folding, and localization: an
improved R-hat, as ArviZ computes them one element at a time; tests hold the two together to 1e-8.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["MAX_RHAT", "MIN_CHAINS", "MIN_DRAWS", "MIN_ESS_PER_CHAIN", "Mixing", "evenly_spaced", "mixing", "moves"]

MAX_RHAT = 1.01
"""Above it the chains disagree: Vehtari et al. (2021)."""

MIN_ESS_PER_CHAIN = 100
"""Below it R-hat and the errors themselves are noise: 400 for the usual four chains, Vehtari et al. (2021)."""

MIN_CHAINS = 4
"""Vehtari et al. (2021) recommend at least four."""

MIN_DRAWS = 4
"""Chains are split in halves, and a variance needs two draws."""

_RESOLUTION = 1e-15  # numbers closer together than this are one


class Mixing(NamedTuple):
    """How well each element mixes, (dim,): NaN with too few draws, and for an element that never moves."""

    rhat: Tensor  # NaN with one chain, too
    bulk: Tensor
    tail: Tensor


def evenly_spaced(length: int, num: int) -> Tensor:
    """Return at most `num` indices from 0 to length - 1, as evenly spaced as can be, both ends among them.

    Example:
        >>> evenly_spaced(10, 4), evenly_spaced(3, 4)
        (tensor([0, 3, 6, 9]), tensor([0, 1, 2]))
    """
    if num >= length:
        return torch.arange(length)
    return torch.linspace(0, length - 1, num, dtype=torch.float64).round().long()


def moves(draws: Tensor) -> Tensor:
    """Say which elements of draws (chain, draw, dim) ever change in a chain, (dim,)."""
    return (draws != draws[:, :1]).any(1).any(0)


def mixing(draws: Tensor) -> Mixing:
    """Return rank-normalised split R-hat, bulk ESS and tail ESS of finite draws (chain, draw, dim).

    R-hat is the worse of location and scale; the tail's ESS is that of the worse of the 5 and 95 percent quantiles.
    """
    chains, num_draws, dim = draws.shape
    found = [torch.full((dim,), torch.nan, dtype=torch.float64) for _ in range(3)]
    moving = moves(draws)
    if num_draws < MIN_DRAWS or not moving.any():
        return Mixing(*found)
    draws = draws[..., moving].cpu().double().permute(2, 0, 1).contiguous()  # (dim, chain, draw), as sorting and FFT like it
    halves = _split(draws)
    ranked = _normal_scores(halves)
    if chains > 1:
        folded = (halves - _median(halves)[:, None, None]).abs()
        found[0][moving] = torch.maximum(_rhat(ranked), _rhat(_normal_scores(folded)))
    found[1][moving] = _ess(ranked)
    ordered = _sorted(draws)
    low, high = (_ess(_split((draws <= _quantile(ordered, level)[:, None, None]).double())) for level in (0.05, 0.95))
    found[2][moving] = torch.minimum(low, high)
    return Mixing(*found)


def _split(draws: Tensor) -> Tensor:
    """Cut every chain in two halves; the middle of an odd number of draws is left out."""
    half = draws.shape[-1] // 2
    return torch.cat([draws[..., :half], draws[..., -half:]], 1)


def _sorted(draws: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(draws.flatten(1).numpy(), -1))  # ten times as fast as torch's


def _median(draws: Tensor) -> Tensor:
    ordered = _sorted(draws)
    return (ordered[:, (ordered.shape[1] - 1) // 2] + ordered[:, ordered.shape[1] // 2]) / 2


def _quantile(ordered: Tensor, level: float) -> Tensor:
    """Return a quantile of sorted numbers (dim, n), by linear interpolation (type 7 of Hyndman and Fan 1996)."""
    size = ordered.shape[1]
    place = size * level + (1 - level)
    below = int(min(max(place, 1), size - 1))
    share = min(max(place - below, 0.0), 1.0)
    return (1 - share) * ordered[:, below - 1] + share * ordered[:, below]


def _normal_scores(draws: Tensor) -> Tensor:
    """Replace draws by normal quantiles of their ranks among all chains, ``Phi^-1((r - 3/8) / (n + 1/4))``; ties share a rank."""
    flat = draws.flatten(1)
    order = torch.from_numpy(np.argsort(flat.numpy(), -1))
    ordered, size = flat.gather(1, order), flat.shape[1]
    ranks = torch.arange(size, dtype=torch.float64)
    differs = ordered[:, 1:] != ordered[:, :-1]
    if not differs.all():
        edge = differs.new_ones((len(ordered), 1))
        first = torch.where(torch.cat([edge, differs], 1), ranks, 0.0).cummax(-1).values
        last = torch.where(torch.cat([differs, edge], 1), ranks, size).flip(-1).cummin(-1).values.flip(-1)
        ranks = (first + last) / 2
    scores = torch.special.ndtri((ranks + 1 - 0.375) / (size + 0.25)).expand_as(ordered)
    return torch.empty_like(ordered).scatter_(-1, order, scores).reshape(draws.shape)


def _rhat(draws: Tensor) -> Tensor:
    """``sqrt((B / W + n - 1) / n)``, B = n times the variance of the chains' means, W the mean of their variances."""
    num = draws.shape[-1]
    return ((num * draws.mean(-1).var(-1) / draws.var(-1).mean(-1) + num - 1) / num).sqrt()


def _ess(draws: Tensor) -> Tensor:
    """``n / (-1 + 2 sum_t rho_t)``, with the sum cut off and made monotone as Geyer (1992) says."""
    dim, chains, num = draws.shape
    covariance = _autocovariance(draws)
    variance = covariance[:, :1] * num / (num - 1)
    total = covariance[:, :1] + (draws.mean(-1).var(-1, keepdim=True) if chains > 1 else 0.0)
    rho = 1 - (variance - covariance) / total
    rho[:, 0] = 1.0
    pairs = rho[:, : num // 2 * 2].reshape(dim, -1, 2).sum(-1)
    # Geyer's initial positive sequence: pairs 0, 1, ... up to the first that is not positive, whose even half alone counts.
    most = max(0, -(-(num - 2) // 2) - 1)
    ended = torch.cat([~(pairs > 0), pairs.new_ones((dim, 1), dtype=torch.bool)], 1).int().argmax(-1, keepdim=True).clamp(max=most)
    even = rho.gather(1, 2 * ended)
    last = torch.where((pairs.gather(1, ended) >= 0) | (even > 0), even, 0.0)[:, 0]
    counted = torch.arange(pairs.shape[1]) < ended
    time = -1 + 2 * torch.where(counted, pairs.cummin(-1).values, 0.0).sum(-1) + last
    size = chains * num
    spread = draws.flatten(1).amax(-1) - draws.flatten(1).amin(-1)
    return torch.where(spread < _RESOLUTION, float(size), size / time.clamp(min=1 / math.log10(size)))


def _autocovariance(draws: Tensor) -> Tensor:
    """Return the chains' mean autocovariance at every lag, (dim, lag)."""
    num = draws.shape[-1]
    spectrum = torch.fft.rfft(draws - draws.mean(-1, keepdim=True), n=2 * num).abs().square().mean(1)
    return torch.fft.irfft(spectrum, n=2 * num)[:, :num] / num
