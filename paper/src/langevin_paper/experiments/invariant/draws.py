"""Many settings of one sampler side by side, as chains of one run; and what their draws say. Errors are in percent."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.diagnostics import ess
from langevin.diagnostics.trust import TrustWarning
from langevin.execution import side_by_side
from langevin.kernels import Kernel
from langevin.sampling.sample import sample
from langevin_paper.experiments.invariant.problems import Problem

__all__ = ["Error", "errors", "independent_draws", "run_settings"]


class Error(NamedTuple):
    """How far second moments about the true mean are off, in percent, along the principal axes of the true covariance."""

    error: float  # mean over the axes of |moment / variance - 1|
    signed: float  # the same without the bars: below zero where the law is too cold
    chance: float  # what `error` would be on average without any bias, from the spread over chains
    excess: float  # the largest over the axes of |moment / variance - 1| - 2 standard errors


def run_settings(
    kernels: Sequence[Kernel], problem: Problem, *, num_chains: int, num_steps: int, warmup: int, seed: int, thin: int = 1
) -> Tensor:
    """Run some chains of each kernel from draws of the target; return what they drew, (kernel, chain, draw, dim)."""
    start = problem.draw(len(kernels) * num_chains, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustWarning)  # a chain that stops has no law, which is the answer, and so is a wrong one
        found = sample(
            problem.target,
            sampler=side_by_side(kernels, num_chains),
            init=start,
            num_steps=num_steps,
            warmup=warmup,
            thin=thin,
            data=problem.data,
            batch_size=problem.batch_size,
            seed=seed,
            compile=False,
            progress=False,
        )  # fmt: skip
    return found.draws.reshape(len(kernels), num_chains, -1, start.shape[-1])


def errors(draws: Tensor, problem: Problem) -> Error | None:
    """Measure the law of draws (chain, draw, dim), each chain independent of the others; None where one is not finite."""
    if not torch.isfinite(draws).all():
        return None
    variances, axes = torch.linalg.eigh(problem.covariance)
    along = (draws - problem.mean.to(draws)) @ axes.to(draws)
    ratio = 100 * (along * along).double().mean(1) / variances  # (chain, axis)
    if not torch.isfinite(ratio).all():
        return None
    off, spread = ratio.mean(0) - 100, ratio.std(0) / len(ratio) ** 0.5
    chance = (2 / torch.pi) ** 0.5 * spread.mean()  # the mean of |N(0, 1)| is sqrt(2 / pi)
    return Error(float(off.abs().mean()), float(off.mean()), float(chance), float((off.abs() - 2 * spread).max()))


def independent_draws(draws: Tensor, problem: Problem, num_coordinates: int) -> float:
    """Return the effective sample size of draws (chain, draw, dim): the least over some coordinates and their squares, by ArviZ."""
    dim = draws.shape[-1]
    chosen = torch.linspace(0, dim - 1, min(dim, num_coordinates)).round().long()
    centred = (draws - problem.mean.to(draws))[..., chosen]
    return float(ess(torch.cat([centred, centred * centred], -1)).min())
