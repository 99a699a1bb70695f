"""Do the chains agree, and how many independent draws are they worth: ArviZ's numbers, and sentences about them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_integer, needs
from langevin.diagnostics.arrays import check_draws, evenly_spaced, is_samples
from langevin.store import Samples
from langevin.store.samples import import_arviz

__all__ = [
    "MAX_RHAT",
    "MIN_CHAINS",
    "MIN_DRAWS",
    "MIN_ESS_PER_CHAIN",
    "autocorrelation",
    "ess",
    "mcse",
    "rhat",
    "standard_error",
    "warnings_in_words",
]

MAX_RHAT = 1.01
"""Above it the chains disagree: Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021),
Rank-normalization, folding, and localization: an improved R-hat."""

MIN_ESS_PER_CHAIN = 100
"""Below it R-hat and the errors themselves are noise: 400 for the usual four chains, Vehtari et al. (2021)."""

MIN_CHAINS = 4
"""Vehtari et al. (2021) recommend at least four."""

MIN_DRAWS = 4
"""ArviZ splits chains in halves, and a variance needs two draws."""

CHAINS_FOR_SPREAD = 30
"""From so many chains on, their spread alone gives a standard error (to 13 percent); below it ArviZ's MCSE is steadier."""


def _by_element(draws: Tensor, statistic: Callable[..., Any], min_chains: int, **settings: Any) -> Tensor:
    """Apply an ArviZ statistic to each element; NaN where draws are too few, or an element stands still in every chain."""
    chains, num_draws, dim = draws.shape
    result = torch.full((dim,), torch.nan, dtype=torch.float64)
    moves = (draws != draws[:, :1]).any(1).any(0)
    if chains >= min_chains and num_draws >= MIN_DRAWS and moves.any():
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "More chains", UserWarning)  # ArviZ thinks that the axes were swapped
            dataset = import_arviz().convert_to_dataset({"theta": draws[..., moves].numpy()})
            result[moves] = torch.tensor(statistic(dataset, **settings)["theta"].values, dtype=torch.float64)
    return result


def ess(draws: Tensor, *, method: str = "bulk") -> Tensor:
    """Return the effective sample size of each element: the number of independent draws with the same error.

    ``ESS = n / (1 + 2 sum_t rho_t)`` over all chains, by ArviZ on rank-normalised split chains (Vehtari et al. 2021).

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
    return _by_element(check_draws("ess", "draws", draws), import_arviz().ess, 1, method=method)


def rhat(draws: Tensor) -> Tensor:
    """Return the rank-normalised split R-hat of each element, by ArviZ; near 1 when the chains agree.

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
    return _by_element(check_draws("rhat", "draws", draws), import_arviz().rhat, 2)


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
    return _by_element(check_draws("mcse", "draws", draws), import_arviz().mcse, 1)


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


def warnings_in_words(samples: Samples, *, max_elements: int = 200) -> list[str]:
    """Say what speaks against trusting these draws, each with what to do; an empty list when nothing was found.

    It looks at stopped chains, at the number of chains and draws, at elements that are not finite or never move, at R-hat above
    `MAX_RHAT`, and at bulk and tail ESS below `MIN_ESS_PER_CHAIN` a chain. No news is not proof: chains that agree may share a bias
    of the sampler (`ksd`, `effective_temperature`) or a mode that all of them missed.

    Args:
        samples: the result of `langevin.sample`.
        max_elements: look at so many elements of theta, evenly spaced: each takes milliseconds.

    Returns:
        Sentences.

    Example:
        >>> import langevin as lv
        >>> samples = lv.sample(lv.sgld(0.01), lv.targets.gaussian([[1.0]]), torch.zeros(1), num_steps=50)
        >>> for sentence in warnings_in_words(samples):
        ...     print(sentence.split(":")[0])
        one chain
        few independent draws
    """
    samples = is_samples("warnings_in_words", samples)
    check_integer("warnings_in_words", "max_elements", max_elements, 1)
    found = []
    stopped = [status for status in samples.status if not status.is_healthy]
    if stopped:
        found.append(
            f"stopped chains: {len(stopped)} of {len(samples.status)} did not run to their end (the first: {stopped[0]}). They are "
            f"left out here and in summary(), and leaving out chains is itself a bias; use a smaller step_size or another init."
        )
    if samples.kept == "moments":
        return [*found, 'no draws: the run kept moments, which show neither ESS nor R-hat. Run with keep="positions" to judge it.']
    draws = samples.healthy.flatten(2) if samples.draws.ndim > 2 else samples.healthy[..., None]  # `keep` may give any shape
    chains, num_draws, dim = draws.shape
    if chains == 0:
        return found
    if dim == 0:
        return [*found, "no elements: `keep` returns an empty tensor."]
    if chains == 1:
        found.append(
            f"one chain: R-hat is NaN, and nothing can show a mode that this chain never saw. Run {MIN_CHAINS} chains or more, "
            f"from starting points that lie wide apart: init of shape ({MIN_CHAINS}, dim)."
        )
    if num_draws < MIN_DRAWS:
        found.append(
            f"too few draws: {num_draws} for each chain, and ESS and R-hat (NaN) need {MIN_DRAWS}. Raise num_steps, or "
            f"lower warmup or thin."
        )
        return found

    elements = evenly_spaced(dim, max_elements)
    looked = draws[..., elements]
    among = f"of {dim} elements" if len(elements) == dim else f"of the {len(elements)} elements looked at"
    finite = torch.isfinite(looked).all(1).all(0)
    if not finite.all():
        found.append(
            f"non-finite draws: {int((~finite).sum())} {among} are NaN or infinite in chains that ran to their end (the first is "
            f"element {int(elements[~finite][0])}). See what `keep` returns there; ESS and R-hat are not known."
        )
        looked, elements = looked[..., finite], elements[finite]
    if not finite.any():
        return found
    still = ~(looked != looked[:, :1]).any(1).any(0)
    if still.any():
        found.append(
            f"no movement: {int(still.sum())} {among} never changed (the first is element {int(elements[still][0])}). The step "
            f"size is too small for the dtype, or the sampler does not move them; ESS and R-hat are NaN there."
        )
    found += _disagreement(looked, elements, among)
    found += _few_independent(looked, elements, among)
    return found


def _disagreement(draws: Tensor, elements: Tensor, among: str) -> list[str]:
    values = rhat(draws)
    bad = values > MAX_RHAT  # NaN is not
    if not bad.any():
        return []
    worst = int(values.nan_to_num(-torch.inf).argmax())
    return [
        f"chains disagree: R-hat is above {MAX_RHAT} for {int(bad.sum())} {among}, worst {values[worst]:.3f} at element "
        f"{int(elements[worst])}. Do not pool the chains yet: take more steps, a longer warmup, or a sampler that crosses between "
        f"modes."
    ]


def _few_independent(draws: Tensor, elements: Tensor, among: str) -> list[str]:
    chains, num_draws, _ = draws.shape
    enough = MIN_ESS_PER_CHAIN * chains
    values = torch.minimum(ess(draws), ess(draws, method="tail"))
    bad = values < enough
    if not bad.any():
        return []
    worst = int(values.nan_to_num(torch.inf).argmin())
    longer = enough / float(values[worst])
    return [
        f"few independent draws: the {chains * num_draws} draws are worth fewer than {enough} ({MIN_ESS_PER_CHAIN} a chain) for "
        f"{int(bad.sum())} {among}, worst {values[worst]:.0f} at element {int(elements[worst])}. Take about {longer:.0f} times as "
        f"many steps after the warmup, or a larger step_size if its bias allows."
    ]
