"""How well draws under a prior and a temperature predict rows that they have not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from langevin.engines import run_blocks
from langevin.gradients import full
from langevin.noise import Purpose, permutation, stream
from langevin.predictive import log_likelihood
from langevin.targets import Posterior
from langevin.tuning import find_everything

__all__ = ["held_out_nll", "split"]

WARMUP = 1200  # gradients that a warm-up takes, about
_DRAWS = 50  # of each chain, evenly spaced


def split(columns: Sequence[Tensor], share: float, seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the columns' rows in two parts, the second of which is a share of them drawn at random."""
    number = len(columns[0])
    order = permutation(seed, stream(Purpose.DATA), 0, number).to(columns[0].device)
    first = number - round(share * number)
    return tuple(column[order[:first]] for column in columns), tuple(column[order[first:]] for column in columns)


def held_out_nll(
    posterior: Posterior,
    data: Sequence[Tensor],
    unseen: Sequence[Tensor],
    *,
    chains: int,
    temperature: float,
    num_steps: int,
    seed: int,
    tell: Callable[[int], object],
) -> Tensor | None:
    """Return ``-log mean_draws p(y_i | x_i, draw)`` of every unseen row, (n,), in float64; None where all chains ran off.

    The sampler is that of `langevin.sample` without settings, at a temperature: chains go to a mode, learn a scale and a step size
    there, and then take `num_steps` steps.

    Args:
        posterior: of the data.
        data: its columns (x, y).
        unseen: columns of other rows.
        chains: how many.
        temperature: τ.
        num_steps: after the warm-up.
        seed: of starts and noise.
        tell: called with the number of gradients taken, now and then.
    """
    gradient_fn, numbers = full(posterior, data), range(chains)
    found = find_everything(
        gradient_fn, posterior.init(chains, seed), chains=numbers, seed=seed, temperature=temperature, tell=tell
    )
    every = max(1, num_steps // _DRAWS)
    draws, done = [], 0
    for trace in run_blocks(found.kernel, gradient_fn, found.position, seed=seed, chains=numbers, num_steps=num_steps):
        steps = torch.arange(done + 1, done + 1 + len(trace.positions))
        draws.append(trace.positions[steps % every == 0])
        done += len(trace.positions)
        tell(found.gradients + done)
    positions = torch.cat(draws).flatten(0, 1)
    finite = positions[torch.isfinite(positions).all(-1)]
    if len(finite) == 0:
        return None
    logs = log_likelihood(posterior, finite, *unseen).double()
    return math.log(len(logs)) - logs.logsumexp(0)
