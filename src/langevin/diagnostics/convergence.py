"""R-hat, effective sample size and Monte Carlo errors of chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_integer, needs
from langevin.diagnostics.arrays import check_draws

__all__ = [
    "MAX_RHAT",
    "MIN_CHAINS",
    "MIN_DRAWS",
    "MIN_ESS_PER_CHAIN",
    "Errors",
    "Mixing",
    "acceptance_rate",
    "autocorrelation",
    "errors",
    "ess",
    "mcse",
    "mixing",
    "moves",
    "rhat",
    "sd_error",
    "standard_error",
]


MAX_RHAT = 1.01
"""Chains disagree above this value (Vehtari et al. 2021)."""

MIN_ESS_PER_CHAIN = 100
"""R-hat and error estimates are unreliable below this value (Vehtari et al. 2021)."""

MIN_CHAINS = 4
"""The number of chains that Vehtari et al. (2021) recommend."""

MIN_DRAWS = 4
"""Chains are split in halves, and a variance needs two draws."""

CHAINS_FOR_SPREAD = 30
"""Chains whose spread alone gives a standard error, to 13 percent; below it use the MCSE."""

_RESOLUTION = 1e-15  # a series with a smaller range is constant


class Errors(NamedTuple):
    """Monte Carlo standard errors of each element, (dim,); NaN as in `Mixing`."""

    mean: Tensor
    sd: Tensor


class Mixing(NamedTuple):
    """R-hat and ESS of each element, (dim,): NaN with too few draws, or if it never moves."""

    rhat: Tensor  # NaN with one chain, too
    bulk: Tensor
    tail: Tensor


def moves(draws: Tensor) -> Tensor:
    """Return which elements of draws (chain, draw, dim) ever change in a chain, (dim,)."""
    return (draws != draws[:, :1]).any(1).any(0)


def mixing(draws: Tensor) -> Mixing:
    """Return rank-normalised split R-hat, bulk ESS and tail ESS of draws (chain, draw, dim).

    R-hat is the maximum of location and scale; tail ESS is the minimum of the 5 and 95 percent
    quantiles.
    """
    return Mixing(*_of_moving(draws, _mixing, 3))


def errors(draws: Tensor) -> Errors:
    """Return the Monte Carlo errors of mean and standard deviation of draws (chain, draw, dim)."""
    return Errors(*_of_moving(draws, _errors, 2))


def _of_moving(draws: Tensor, statistics: Callable[[Tensor], Sequence[Tensor]], num: int) -> Tensor:
    """Apply `num` statistics of (dim, chain, draw) to the elements that move, NaN for others."""
    found = torch.full((num, draws.shape[-1]), torch.nan, dtype=torch.float64)
    used = moves(draws) & draws.isfinite().all(1).all(0)
    if draws.shape[1] >= MIN_DRAWS and used.any():
        # (dim, chain, draw), which is fast for sorting and FFT.
        series = draws[..., used].cpu().double().permute(2, 0, 1).contiguous()
        found[:, used.cpu()] = torch.stack([*statistics(series)])
    return found


def _mixing(draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    halves = _split(draws)
    ranked = _normal_scores(halves)
    rhat = draws.new_full((len(draws),), torch.nan)
    if draws.shape[1] > 1:
        folded = (halves - _median(halves)[:, None, None]).abs()
        rhat = torch.maximum(_rhat(ranked), _rhat(_normal_scores(folded)))
    ordered = _sorted(draws)
    quantiles = (_quantile(ordered, level)[:, None, None] for level in (0.05, 0.95))
    low, high = (_ess(_split((draws <= quantile).double())) for quantile in quantiles)
    return rhat, _ess(ranked), torch.minimum(low, high)


def _errors(draws: Tensor) -> tuple[Tensor, Tensor]:
    squares, (mean, sd) = _squares(draws), _ess_of_moments(draws)
    variance = squares.mean((1, 2))
    spread = (squares.square().mean((1, 2)) - variance**2) / (4 * variance)
    return (draws.flatten(1).var(-1) / mean).sqrt(), (spread / sd).sqrt()


def _ess_of_moments(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ESS of the mean and of the standard deviation."""
    return _ess(_split(draws)), _ess(_split(_squares(draws)))


def _squares(draws: Tensor) -> Tensor:
    return (draws - draws.mean((1, 2), keepdim=True)).square()


def sd_error(draws: Tensor) -> Tensor:
    """Return the relative Monte Carlo error of the sd of each element, (dim,).

    ``e = sqrt(Var[s] / ESS[s]) / (2 E[s])`` with s the squared distance from the mean. Unlike bulk
    and tail ESS, which are computed from ranks, it includes the effect of a few draws far out. NaN
    where an element never moves. Draws are (chain, draw, dim).

    Example:
        >>> from langevin.random import normal
        >>> draws = normal(0, range(4), range(500), 1, dtype=torch.float64).transpose(0, 1)
        >>> draws[0, 100:120] += 40
        >>> bool(sd_error(draws)[0] > 0.1)
        True
    """
    found = torch.full((draws.shape[-1],), torch.nan, dtype=torch.float64)
    moving = moves(draws)
    if draws.shape[1] < MIN_DRAWS or not moving.any():
        return found
    draws = draws[..., moving].cpu().double().permute(2, 0, 1)
    squares = (draws - draws.mean((1, 2), keepdim=True)).square()
    variance = squares.mean((1, 2)).clamp(min=torch.finfo(torch.float64).tiny)
    spread = squares.flatten(1).var(1) / _ess(_split(squares))
    found[moving] = spread.sqrt() / (2 * variance)
    return found


def _split(draws: Tensor) -> Tensor:
    """Split each chain into halves; drop the middle of an odd number of draws."""
    half = draws.shape[-1] // 2
    return torch.cat([draws[..., :half], draws[..., -half:]], 1)


def _sorted(draws: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(draws.flatten(1).numpy(), -1))  # ten times faster than torch


def _median(draws: Tensor) -> Tensor:
    ordered = _sorted(draws)
    return (ordered[:, (ordered.shape[1] - 1) // 2] + ordered[:, ordered.shape[1] // 2]) / 2


def _quantile(ordered: Tensor, level: float) -> Tensor:
    """Return a quantile of sorted numbers (dim, n), type 7 of Hyndman and Fan (1996)."""
    size = ordered.shape[1]
    rank = size * level + (1 - level)
    below = int(min(max(rank, 1), size - 1))
    share = min(max(rank - below, 0.0), 1.0)
    return (1 - share) * ordered[:, below - 1] + share * ordered[:, below]


def _normal_scores(draws: Tensor) -> Tensor:
    """Return ``Phi^-1((r - 3/8) / (n + 1/4))`` of the ranks r among all chains, with mean ties."""
    flat = draws.flatten(1)
    order = torch.from_numpy(np.argsort(flat.numpy(), -1))
    ordered, size = flat.gather(1, order), flat.shape[1]
    ranks = torch.arange(size, dtype=torch.float64)
    differs = ordered[:, 1:] != ordered[:, :-1]
    if not differs.all():
        edge = differs.new_ones((len(ordered), 1))
        first = torch.where(torch.cat([edge, differs], 1), ranks, 0.0).cummax(-1).values
        last = torch.where(torch.cat([differs, edge], 1), ranks, size).flip(-1).cummin(-1).values
        ranks = (first + last.flip(-1)) / 2
    scores = torch.special.ndtri((ranks + 1 - 0.375) / (size + 0.25)).expand_as(ordered)
    return torch.empty_like(ordered).scatter_(-1, order, scores).reshape(draws.shape)


def _rhat(draws: Tensor) -> Tensor:
    """Return ``sqrt((B / W + n - 1) / n)``, B / n the variance of means, W the mean variance."""
    num = draws.shape[-1]
    return ((num * draws.mean(-1).var(-1) / draws.var(-1).mean(-1) + num - 1) / num).sqrt()


def _ess(draws: Tensor) -> Tensor:
    """Return ``n / (-1 + 2 sum_t rho_t)`` with the initial monotone sequence of Geyer (1992)."""
    dim, chains, num = draws.shape
    covariance = _autocovariance(draws)
    variance = covariance[:, :1] * num / (num - 1)
    total = covariance[:, :1] + (draws.mean(-1).var(-1, keepdim=True) if chains > 1 else 0.0)
    rho = 1 - (variance - covariance) / total
    rho[:, 0] = 1.0
    pairs = rho[:, : num // 2 * 2].reshape(dim, -1, 2).sum(-1)
    # The initial positive sequence: pairs 0, 1, ... up to the first that is not positive, of which
    # only the even half counts.
    most = max(0, -(-(num - 2) // 2) - 1)
    is_end = torch.cat([~(pairs > 0), pairs.new_ones((dim, 1), dtype=torch.bool)], 1)
    ended = is_end.int().argmax(-1, keepdim=True).clamp(max=most)
    even = rho.gather(1, 2 * ended)
    last = torch.where((pairs.gather(1, ended) >= 0) | (even > 0), even, 0.0)[:, 0]
    counted = torch.arange(pairs.shape[1]) < ended
    time = -1 + 2 * torch.where(counted, pairs.cummin(-1).values, 0.0).sum(-1) + last
    size = chains * num
    spread = draws.flatten(1).amax(-1) - draws.flatten(1).amin(-1)
    found = size / time.clamp(min=1 / math.log10(size))
    return torch.where(spread < _RESOLUTION, float(size), found)


def _autocovariance(draws: Tensor) -> Tensor:
    """Return the chains' mean autocovariance at every lag, (dim, lag)."""
    num = draws.shape[-1]
    spectrum = torch.fft.rfft(draws - draws.mean(-1, keepdim=True), n=2 * num).abs().square()
    return torch.fft.irfft(spectrum.mean(1), n=2 * num)[:, :num] / num


def acceptance_rate(draws: Tensor) -> Tensor:
    """Return the share of draws that differ from the previous one: the acceptance rate by chain.

    Args:
        draws: (chain, draw, dim), of every trajectory. With thinning it is the share that moved at
            least once.

    Returns:
        (chain,), in float64.

    Example:
        >>> acceptance_rate(torch.tensor([[[0.0], [1.0], [1.0], [2.0], [2.0]]]))
        tensor([0.5000], dtype=torch.float64)
    """
    draws = check_draws("acceptance_rate", "draws", draws)
    return (draws[:, 1:] != draws[:, :-1]).any(-1).double().mean(-1)


def ess(draws: Tensor, *, method: str = "bulk") -> Tensor:
    """Return the effective sample size (ESS) of each element.

    ``ESS = n / (1 + 2 sum_t rho_t)`` over all chains, on rank-normalised split chains (Vehtari et
    al. 2021).

    Args:
        draws: (chain, draw, dim).
        method: "bulk" for the centre, "tail" for the 5 and 95 percent quantiles, "mean" or "sd" for
            these estimates.

    Returns:
        (dim,). NaN with fewer than four draws a chain, and for an element that never moves, where
        ArviZ returns n.

    Example:
        >>> from langevin.random import normal
        >>> ess(normal(0, range(4), range(500), 2).transpose(0, 1)) > 1500
        tensor([True, True])
    """
    if method not in ("bulk", "tail", "mean", "sd"):
        kind = ValueError if isinstance(method, str) else TypeError
        raise needs("ess", "method", 'one of "bulk", "tail", "mean", "sd"', method, kind)
    draws = check_draws("ess", "draws", draws)
    if method in ("bulk", "tail"):
        return getattr(mixing(draws), method)
    return _of_moving(draws, _ess_of_moments, 2)[0 if method == "mean" else 1]


def rhat(draws: Tensor) -> Tensor:
    """Return the rank-normalised split R-hat of each element; near 1 if the chains agree.

    ``R-hat = sqrt(((n - 1) W / n + B / n) / W)``, B between and W within half chains, the maximum
    of location and scale (Vehtari et al. 2021).

    Args:
        draws: (chain, draw, dim).

    Returns:
        (dim,). NaN with one chain, with fewer than four draws a chain, and for an element that
        never moves.

    Example:
        >>> from langevin.random import normal
        >>> agree = normal(0, range(4), range(500), 1).transpose(0, 1)
        >>> rhat(agree) < 1.01, rhat(agree + torch.arange(4.0).view(4, 1, 1)) > 1.5
        (tensor([True]), tensor([True]))
    """
    return mixing(check_draws("rhat", "draws", draws)).rhat


def mcse(draws: Tensor) -> Tensor:
    """Return the Monte Carlo standard error of each element's mean, ``sd / sqrt(ESS)``.

    Args:
        draws: (chain, draw, dim).

    Returns:
        (dim,). NaN with fewer than four draws a chain, and for an element that never moves.

    Example:
        >>> from langevin.random import normal
        >>> mcse(normal(0, range(4), range(2500), 1).transpose(0, 1)).round(decimals=3)
        tensor([0.0100], dtype=torch.float64)
    """
    return errors(check_draws("mcse", "draws", draws)).mean


def autocorrelation(draws: Tensor, max_lag: int = 100) -> Tensor:
    """Return the autocorrelation of each chain and element at lags 0, 1, ...

    ``rho_t = sum_s (x_s - mean)(x_{s+t} - mean) / sum_s (x_s - mean)**2``

    Args:
        draws: (chain, draw, dim).
        max_lag: the last lag; lags stop at draw - 1.

    Returns:
        (chain, lag, dim), 1 at lag 0. NaN for an element that never moves in a chain.

    Example:
        >>> path = torch.tensor([1.0, -1.0] * 50).view(1, 100, 1)
        >>> autocorrelation(path, max_lag=2).flatten()
        tensor([ 1.0000, -0.9900,  0.9800], dtype=torch.float64)
    """
    draws = check_draws("autocorrelation", "draws", draws)
    check_integer("autocorrelation", "max_lag", max_lag, 1)
    moves = (draws != draws[:, :1]).any(1, keepdim=True)
    covariance = _autocovariance(draws.mT.flatten(0, 1)[:, None])  # of chains and elements
    values = (covariance / covariance[:, :1])[:, : max_lag + 1]
    return values.unflatten(0, (len(draws), -1)).mT.masked_fill(~moves, torch.nan)


def standard_error(values: Tensor) -> Tensor:
    """Return the standard error of the mean over chains and draws of each series.

    With `CHAINS_FOR_SPREAD` chains or more it is the spread of the chains' means over sqrt(chains),
    which is valid for slow but independent chains; with fewer it is `mcse`, or the spread if draws
    are too few for that.

    Args:
        values: (chain, draw, dim), finite.

    Returns:
        (dim,). NaN for one chain of fewer than four draws.

    Example:
        >>> standard_error(torch.arange(30.0).view(30, 1, 1))
        tensor([1.6073], dtype=torch.float64)
    """
    values = check_draws("standard_error", "values", values)
    chains, num_draws, dim = values.shape
    if chains < CHAINS_FOR_SPREAD and num_draws >= MIN_DRAWS:
        return mcse(values)
    if chains < 2:
        return torch.full((dim,), torch.nan, dtype=torch.float64)
    return values.mean(1).std(0) / chains**0.5
