"""The likelihood of held-out rows under draws at a prior and a temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from langevin.adaptation import warm_up
from langevin.execution import run_blocks
from langevin.nn.predictive import log_likelihood
from langevin.random import Purpose, permutation, stream
from langevin.targets import Posterior
from langevin.targets.gradients import full

__all__ = ["WARMUP", "held_out_nll", "split"]

WARMUP = 1200  # approximate number of gradients of a warm-up
_DRAWS = 50  # of each chain, evenly spaced


def split(
    columns: Sequence[Tensor], share: float, seed: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Split the rows of the columns in two, the second a random share of them."""
    number = len(columns[0])
    order = permutation(seed, stream(Purpose.DATA), 0, number).to(columns[0].device)
    first, second = order.tensor_split([number - round(share * number)])
    return tuple(column[first] for column in columns), tuple(column[second] for column in columns)


def held_out_nll(
    posterior: Posterior,
    data: Sequence[Tensor],
    unseen: Sequence[Tensor],
    *,
    chains: int,
    temperature: float,
    num_steps: int,
    seed: int,
    report: Callable[[int], object],
) -> Tensor | None:
    """Return ``-log mean_draws p(y_i | x_i, draw)`` of every unseen row, (n,), in float64.

    The sampler is the default one of `langevin.sample`, at a temperature: chains find a mode, adapt
    a metric and a step size, and then take `num_steps` steps.

    Args:
        posterior: of the data.
        data: its columns (x, y).
        unseen: columns of other rows.
        chains: number of chains.
        temperature: τ.
        num_steps: steps after the warm-up.
        seed: of initial positions and noise.
        report: called with the number of gradients so far.

    Returns:
        The losses; None if all chains diverged.
    """
    gradient_fn, numbers = full(posterior, data), range(chains)
    found = warm_up(
        gradient_fn, posterior.init(chains, seed), chains=numbers, seed=seed,
        temperature=temperature, report=report,
    )  # fmt: skip
    every = max(1, num_steps // _DRAWS)
    draws, done = [], 0
    for trace in run_blocks(
        found.kernel, gradient_fn, found.position, seed=seed, chains=numbers, num_steps=num_steps
    ):
        steps = torch.arange(done + 1, done + 1 + len(trace.positions))
        draws.append(trace.positions[steps % every == 0])
        done += len(trace.positions)
        report(found.gradients + done)
    positions = torch.cat(draws).flatten(0, 1)
    finite = positions[torch.isfinite(positions).all(-1)]
    if len(finite) == 0:
        return None
    logs = log_likelihood(posterior, finite, *unseen).double()
    return math.log(len(logs)) - logs.logsumexp(0)
