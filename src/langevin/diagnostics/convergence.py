"""Do the chains agree, and how many independent draws are they worth: `langevin.trust` judges by the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_integer, needs
from langevin.diagnostics.arrays import check_draws
from langevin.store.samples import import_arviz
from langevin.trust.mixing import MIN_DRAWS, mixing, moves

__all__ = [
    "acceptance_rate",
    "autocorrelation",
    "ess",
    "mcse",
    "rhat",
    "standard_error",
]

CHAINS_FOR_SPREAD = 30
"""From so many chains on, their spread alone gives a standard error (to 13 percent); below it ArviZ's MCSE is steadier."""


def _by_element(draws: Tensor, statistic: Callable[..., Any], **settings: Any) -> Tensor:
    """Apply an ArviZ statistic to each element; NaN where draws are too few, or an element stands still in every chain."""
    _, num_draws, dim = draws.shape
    result = torch.full((dim,), torch.nan, dtype=torch.float64)
    moving = moves(draws)
    if num_draws >= MIN_DRAWS and moving.any():
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "More chains", UserWarning)  # ArviZ thinks that the axes were swapped
            dataset = import_arviz().convert_to_dataset({"theta": draws[..., moving].numpy()})
            result[moving] = torch.tensor(statistic(dataset, **settings)["theta"].values, dtype=torch.float64)
    return result


def acceptance_rate(draws: Tensor) -> Tensor:
    """Return the share of draws that differ from the one before, by chain: of a sampler that accepts, how many ends were taken.

    Args:
        draws: (chain, draw, dim), of every trajectory: with a `thin` between them it is the share that moved at least once.

    Returns:
        (chain,), in float64.

    Example:
        >>> acceptance_rate(torch.tensor([[[0.0], [1.0], [1.0], [2.0], [2.0]]]))
        tensor([0.5000], dtype=torch.float64)
    """
    draws = check_draws("acceptance_rate", "draws", draws)
    return (draws[:, 1:] != draws[:, :-1]).any(-1).double().mean(-1)


def ess(draws: Tensor, *, method: str = "bulk") -> Tensor:
    """Return the effective sample size of each element: the number of independent draws with the same error.

    ``ESS = n / (1 + 2 sum_t rho_t)`` over all chains, on rank-normalised split chains (Vehtari et al. 2021).

    Args:
        draws: (chain, draw, dim).
        method: "bulk" for the centre, "tail" for the 5 and 95 percent quantiles, or another method of `arviz.ess`.

    Returns:
        (dim,). NaN with fewer than four draws a chain, and for an element that never moves (ArviZ says n there).

    Example:
        >>> from langevin.noise import normal
        >>> ess(normal(0, range(4), range(500), 2).transpose(0, 1)) > 1500
        tensor([True, True])
    """
    if not isinstance(method, str):
        raise needs("ess", "method", 'a name such as "bulk" or "tail"', method, TypeError)
    draws = check_draws("ess", "draws", draws)
    if method in ("bulk", "tail"):
        return getattr(mixing(draws), method)
    return _by_element(draws, import_arviz().ess, method=method)


def rhat(draws: Tensor) -> Tensor:
    """Return the rank-normalised split R-hat of each element (Vehtari et al. 2021); near 1 when the chains agree.

    ``R-hat = sqrt(((n - 1) W / n + B / n) / W)``, B between and W within half chains, the worse of location and scale.

    Args:
        draws: (chain, draw, dim).

    Returns:
        (dim,). NaN with one chain, with fewer than four draws a chain, and for an element that never moves.

    Example:
        >>> from langevin.noise import normal
        >>> agree = normal(0, range(4), range(500), 1).transpose(0, 1)
        >>> rhat(agree) < 1.01, rhat(agree + torch.arange(4.0).view(4, 1, 1)) > 1.5
        (tensor([True]), tensor([True]))
    """
    return mixing(check_draws("rhat", "draws", draws)).rhat


def mcse(draws: Tensor) -> Tensor:
    """Return the Monte Carlo standard error of each element's mean, ``sd / sqrt(ESS)``, by ArviZ.

    Args:
        draws: (chain, draw, dim).

    Returns:
        (dim,). NaN with fewer than four draws a chain, and for an element that never moves.

    Example:
        >>> from langevin.noise import normal
        >>> mcse(normal(0, range(4), range(2500), 1).transpose(0, 1)).round(decimals=3)
        tensor([0.0100], dtype=torch.float64)
    """
    return _by_element(check_draws("mcse", "draws", draws), import_arviz().mcse)


def autocorrelation(draws: Tensor, max_lag: int = 100) -> Tensor:
    """Return the autocorrelation of each chain and element at lags 0, 1, ..., by ArviZ.

    ``rho_t = sum_s (x_s - mean)(x_{s+t} - mean) / sum_s (x_s - mean)**2``

    Args:
        draws: (chain, draw, dim).
        max_lag: the last lag; lags stop at draw - 1.

    Returns:
        (chain, lag, dim), 1 at lag 0. NaN where a chain's element never moves.

    Example:
        >>> path = torch.tensor([1.0, -1.0] * 50).view(1, 100, 1)
        >>> autocorrelation(path, max_lag=2).flatten()
        tensor([ 1.0000, -0.9900,  0.9800], dtype=torch.float64)
    """
    draws = check_draws("autocorrelation", "draws", draws)
    check_integer("autocorrelation", "max_lag", max_lag, 1)
    moves = (draws != draws[:, :1]).any(1, keepdim=True)
    with np.errstate(all="ignore"):
        values = torch.from_numpy(np.array(import_arviz().autocorr(draws.numpy(), axis=1)))
    return values[:, : max_lag + 1].masked_fill(~moves, torch.nan)


def standard_error(values: Tensor) -> Tensor:
    """Return the standard error of the mean over chains and draws of each series.

    With `CHAINS_FOR_SPREAD` chains or more it is the spread of the chains' means over sqrt(chains), which holds however
    slowly they mix as long as they are independent; with fewer it is `mcse`, and the spread where draws are too few for that.

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
