"""Many settings of one sampler side by side, as chains of one run; and what their draws say."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.diagnostics import ess
from langevin.engines.blocks import draw_block
from langevin.kernels import Kernel
from langevin_paper.invariance.problems import Problem

__all__ = ["Error", "errors", "independent_draws", "walk"]

_ELEMENTS = 2**20  # of the noise drawn ahead
_COORDINATES = 8  # whose effective sample size is taken


class Error(NamedTuple):
    """How far second moments about the true mean are off, relative, along the principal axes of the true covariance."""

    error: float  # mean over the axes of |moment / variance - 1|
    signed: float  # the same without the bars: below zero where the law is too cold
    chance: float  # what `error` would be on average without any bias, from the spread over chains
    excess: float  # the largest over the axes of |moment / variance - 1| - 2 standard errors


def walk(
    kernel: Kernel, problem: Problem, step_sizes: Tensor, *, factors: Tensor | float = 1.0, warmth: Tensor | float = 1.0,
    num_chains: int, num_steps: int, warmup: int, seed: int, thin: int = 1,
) -> Tensor:  # fmt: skip
    """Run chains from draws of the target, each with a step size and a bias factor of its own.

    `langevin.sample` has one kernel for all chains. Formulas are elementwise, so numbers that differ by chain need no second copy
    of them: they are handed in by the clock, as a schedule's are.

    Args:
        kernel: the sampler, of bias factor 1.
        problem: what is sampled.
        step_sizes: epsilon of each setting, (settings,).
        factors: the bias factor of each.
        warmth: what the temperature is multiplied by in each; for the published forms.
        num_chains: chains of each setting.
        num_steps: steps, warm-up included.
        warmup: first steps thrown away.
        seed: of everything.
        thin: keep every so many.

    Returns:
        Draws, (setting, chain, draw, dim).
    """
    number = len(step_sizes) * num_chains
    position, kernel, gradient_fn = problem.draw(number, seed), kernel.for_run(warmup), problem.gradient(number, seed)

    def by_chain(values: Tensor | float) -> Tensor:
        return torch.as_tensor(values).float().expand(len(step_sizes)).repeat_interleave(num_chains)[:, None]

    eps, factor, noise_scale = by_chain(step_sizes), by_chain(factors), by_chain(warmth) ** 0.5
    memory, kept = kernel.init(position).memory, []
    rows = 1 if problem.batch_size is None else problem.batch_size
    length = max(1, _ELEMENTS // (number * max(rows, position.shape[-1])))
    for begin in range(0, num_steps, length):
        block = draw_block(kernel, gradient_fn, position, seed, range(number), range(begin, min(begin + length, num_steps)))
        for k, clock in enumerate(block.clocks):
            gradient = gradient_fn.evaluate(position, tuple(drawn[k] for drawn in block.drawn)).gradient
            numbers = clock._replace(step_size=eps, annealing=clock.annealing * factor)  # type: ignore[arg-type]
            position, memory = kernel.update(position, gradient, noise_scale * block.noise[k], memory, numbers)
            since = block.steps[k] - warmup + 1
            if since > 0 and since % thin == 0:
                kept.append(position)
    return torch.stack(kept, 1).reshape(len(step_sizes), num_chains, len(kept), -1)


def errors(draws: Tensor, problem: Problem) -> Error | None:
    """Measure the law of draws (chain, draw, dim), each chain independent of the others; None where one is not finite."""
    if not torch.isfinite(draws).all():
        return None
    variances, axes = torch.linalg.eigh(problem.covariance)
    along = (draws - problem.mean.to(draws)) @ axes.to(draws)
    ratio = (along * along).double().mean(1) / variances  # (chain, axis)
    if not torch.isfinite(ratio).all():
        return None
    off, spread = ratio.mean(0) - 1, ratio.std(0) / len(ratio) ** 0.5
    chance = (2 / torch.pi) ** 0.5 * spread.mean()  # the mean of |N(0, 1)| is sqrt(2 / pi)
    return Error(float(off.abs().mean()), float(off.mean()), float(chance), float((off.abs() - 2 * spread).max()))


def independent_draws(draws: Tensor, problem: Problem) -> float:
    """Return the effective sample size of draws (chain, draw, dim): the least over coordinates and their squares, by ArviZ."""
    dim = draws.shape[-1]
    chosen = torch.linspace(0, dim - 1, min(dim, _COORDINATES)).round().long()
    centred = (draws - problem.mean.to(draws))[..., chosen]
    return float(ess(torch.cat([centred, centred * centred], -1)).min())
