"""Chains of a network's posterior: an ensemble by Adam, a burn-in that learns a scale for each chain, then draws."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.estimators.scales import FoundScales
from langevin.estimators.walk import BLOCK, Data, ExactWalk, NoisyWalk
from langevin.gradients import GradientFn, full, minibatch, of_each_row
from langevin.targets import Posterior

__all__ = ["Explored", "Settings", "explore"]

_ROWS = 1000  # at most, of which the first curvature is taken


@dataclass(frozen=True)
class Settings:
    """How long each part takes, and how careful it is."""

    adam_steps: int = 2000
    adam_rate: float = 5e-3
    burn_in: int = 20_000
    num_steps: int = 10_000
    num_draws: int = 50
    batch_size: int | None = None  # rows of a minibatch; None takes all rows at every step
    work: float = 2e-4  # mean square of the energy error of a step, over dim, that sets the step size at first
    careful_work: float = 2e-5  # the same in the last third of the burn-in


class Explored(NamedTuple):
    """What chains left behind."""

    draws: Tensor  # (chains, draws, dim)
    energies: Tensor  # of them, (chains, draws)
    scales: Tensor | None  # of the prior, where they are found, (chains, draws, groups)
    undone: Tensor  # stretches of steps that led out of the posterior, (chains,)
    stretches: int  # in all, of the draws


def explore(
    posterior: Posterior,
    data: Data,
    settings: Settings,
    *,
    chains: range,
    seed: int,
    start: Tensor | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Explored:
    """Draw from the posterior of a network.

    Args:
        posterior: of the network; where its prior is `FoundScales`, chains begin with it. It is not changed.
        data: inputs and targets.
        settings: how long each part takes.
        chains: their numbers; a chain is a function of (seed, number).
        seed: of all that is random.
        start: where the chains begin, (chains, dim); None for the network's own initialisation.
        progress: is told the share of the work that is done.
    """
    posterior = copy.copy(posterior)  # whose prior may be drawn anew on the way, for these chains alone
    if start is None:
        start = posterior.init(len(chains), seed, first_chain=chains.start)
    stretches = max(settings.num_draws, settings.num_steps // BLOCK)
    total = settings.adam_steps + settings.burn_in + stretches * BLOCK
    downhill = _downhill(posterior, data, settings, chains, seed)
    position = _descend(downhill, start, posterior.num_data, settings, lambda done: progress(done / total))
    squares, size = _first_squares(posterior, data, position), settings.batch_size
    walk: ExactWalk | NoisyWalk
    if size is None:
        walk = ExactWalk(posterior, data, position, squares, chains, seed)
    else:
        walk = NoisyWalk(posterior, data, size, position, squares, chains, seed)
    for done in range(0, settings.burn_in, BLOCK):
        trace = walk.go()
        walk.learn(trace, done)
        if isinstance(walk, ExactWalk):
            walk.find_step(settings.work if done < 2 * settings.burn_in / 3 else settings.careful_work, done)
        progress((settings.adam_steps + done) / total)
    walk.settle()
    draws, energies, scales = [], [], []
    kept = {stretches * (k + 1) // settings.num_draws - 1 for k in range(settings.num_draws)}
    for done in range(stretches):
        walk.go()
        if done in kept:
            draws.append(walk.state.position)
            energies.append(walk.energy)
            if isinstance(posterior.prior, FoundScales):
                scales.append(posterior.prior.std)
        progress((settings.adam_steps + settings.burn_in + done * BLOCK) / total)
    found = torch.stack(scales, 1) if scales else None
    return Explored(torch.stack(draws, 1), torch.stack(energies, 1), found, walk.undone, stretches)


def _downhill(posterior: Posterior, data: Data, settings: Settings, chains: range, seed: int) -> GradientFn:
    """Return the gradient that Adam follows."""
    if settings.batch_size is None:
        return full(posterior, data)
    return minibatch(posterior, data, settings.batch_size, seed=seed, chains=chains)


def _descend(
    gradient_fn: GradientFn, position: Tensor, num_data: int, settings: Settings, progress: Callable[[int], None]
) -> Tensor:
    """Go downhill with Adam, all chains at once, with a rate that falls to zero along a cosine."""
    position = position.clone().requires_grad_()
    optimizer = torch.optim.Adam([position], lr=settings.adam_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, settings.adam_steps))
    for step in range(settings.adam_steps):
        position.grad = gradient_fn(position.detach(), step).gradient / num_data
        optimizer.step()
        schedule.step()
        if step % BLOCK == 0:
            progress(step)
    return position.detach()


def _first_squares(posterior: Posterior, data: Data, position: Tensor) -> Tensor:
    """Return the curvature along each axis at the modes, by the squares of single rows' gradients (the Fisher information)."""
    size = min(len(data[0]), _ROWS)
    rows = torch.arange(size) * len(data[0]) // size
    squares = [of_each_row(posterior, data, rows, at[None]).square().sum(-2).reshape(1, -1) for at in position]
    prior = posterior.prior.gradient(torch.ones_like(position[:1]))
    return torch.cat(squares) / (len(data[0]) * size) + prior
