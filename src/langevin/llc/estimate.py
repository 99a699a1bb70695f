"""`llc`: the local learning coefficient of any module, by sampling around its present parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from langevin.chains.meter import Progress
from langevin.checks import check_integer, check_number, needs
from langevin.kernels import Kernel
from langevin.llc.localised import Localised, LossFn, Problem
from langevin.llc.pilot import crossing, find_size, quietly, threw_out
from langevin.llc.result import LLC, Rung, measure
from langevin.samplers import sghmc
from langevin.store import Samples
from langevin.targets.likelihoods import Likelihood
from langevin.trust import TrustWarning
from langevin.trust.mixing import mixing
from langevin.tuning import sampler_at

__all__ = ["llc"]

LADDER = (100.0, 10.0, 1.0)
"""The localisations that are tried, from tight to loose."""

_FEWEST = 4  # chains: fewer show nothing of each other
_PER_CROSSING, _MOST_THIN = 8, 500  # draws kept while a chain crosses a flat direction; no more steps than this between them
_TRIES = 4  # runs, each with half the time step, where a chain was thrown out
_BLOCK = 256  # steps that `sample` takes at a time
_CHECKS = ("stopped chains", "sign", "temperature", "energy drift", "excursions")  # of the run, that speak of λ̂
_RHAT = 1.05  # of the loss


class _Run(NamedTuple):
    """How the chains are run."""

    sampler: Kernel | None
    chains: int
    num_draws: int
    thin: int | None
    batch_size: int | None
    seed: int
    compile: bool | str
    progress: Progress


def llc(
    model: nn.Module,
    loss: str | Likelihood | LossFn | None = None,
    data: Sequence[Tensor] | None = None,
    *,
    num_data: int | None = None,
    beta: float | None = None,
    localisation: float | Sequence[float] = LADDER,
    sampler: Kernel | None = None,
    chains: int = 8,
    num_draws: int = 1000,
    thin: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    compile: bool | str = "auto",
    progress: Progress = None,
) -> LLC:
    """Estimate the local learning coefficient of a trained model (Watanabe 2013, WBIC; Lau et al. 2023).

    ``λ̂ = n β (E[L_n(w)] - L_n(w*))``, w drawn from ``exp(-n β L_n(w) - γ/2 |w - w*|^2)`` around w*, the present parameters.
    For a regular model it is dim / 2; the more singular the loss is around w*, the smaller.

    It is a number at this β and γ. The limit β -> infinity is approached like 1 / log(n β) where the multiplicity m is above one:
    `llc_limit` goes there. `rung.beta_slope` and `rung.localisation_slope` say how far λ̂ depends on both, at no cost.

    The loss of a draw is always that of all data; minibatches serve the steps alone.

    Args:
        model: maps x to outputs, row by row, in evaluation mode; it is copied, not changed. Without data, its call without
            arguments returns the loss itself, one number: a population loss, or a normal crossing.
        loss: "mse" (mean over outputs), "cross_entropy", one of `langevin.likelihoods` (its negative logarithm), or a function
            (output, y) that returns the loss of every row, (n,). Without data None.
        data: (x, y).
        num_data: n, without data.
        beta: β; None takes 1 / log n.
        localisation: γ, or several, which are run from tight to loose until λ̂ no longer depends on γ, or chains leave the
            neighbourhood of w*: the last one before that is taken.
        sampler: such as ``langevin.sgld("auto")``; it must have temperature 1, as β is that of the density. None takes the
            invariant MSGLD, whose friction suits γ and whose step is found by pilots; with minibatches ``sghmc("auto")``, which
            holds the heat of their noise below 5 percent of the variance.
        chains: how many, all at once; 30 or more have an error bar that does not rest on autocorrelations.
        num_draws: of each chain, after a warm-up of half as many steps.
        thin: keep every `thin`-th draw; None takes 1 for a given sampler, and 8 draws per crossing of a flat direction else.
        batch_size: rows per step and chain; None takes all data.
        seed: an int in [0, 2**64).
        compile: as in `sample`.
        progress: as in `sample`.

    Returns:
        The estimate, with error, the ladder of localisations, and what speaks against it: also said in a `TrustWarning`.

    Example:
        >>> import torch
        >>> x = torch.linspace(-1, 1, 100).unsqueeze(1)
        >>> line = nn.Linear(1, 1)
        >>> with torch.no_grad():
        ...     _ = line.weight.fill_(2.0), line.bias.fill_(1.0)
        >>> found = llc(line, "mse", (x, 2 * x + 1), localisation=1.0, num_draws=200, compile=False, progress=False)
        >>> abs(found.estimate - 0.96) < 5 * found.error, found.error < 0.1  # 1 for less localisation
        (True, True)
    """
    problem = Problem(model, loss, data, num_data)
    _check(sampler, chains, num_draws, thin, batch_size, problem)
    inverse = 1 / math.log(problem.num_data) if beta is None else check_number("llc", "beta", beta, "> 0", lambda v: v > 0)
    ladder, n_beta = _ladder(localisation), inverse * problem.num_data
    run = _Run(sampler, chains, num_draws, thin, batch_size, seed, compile, progress)
    tried: list[tuple[Rung, LLC]] = []
    for gamma in ladder:
        found = _at(problem, n_beta, gamma, run)
        if tried and found.rung.has_left:
            tried.append((found.rung, tried[-1][1]))
            break
        tried.append((found.rung, found))
        if found.rung.is_flat:
            break
    rungs, chosen = tuple(rung for rung, _ in tried), tried[-1][1]
    result = LLC(**{**chosen.__dict__, "rungs": rungs})
    if result.warnings:
        text = "\n".join(["what speaks against this learning coefficient:", *result.warnings])
        warnings.warn(text, TrustWarning, stacklevel=2)
    return result


def _at(problem: Problem, n_beta: float, gamma: float, run: _Run) -> LLC:
    """Estimate at one localisation."""
    target = problem.localised(n_beta, gamma)
    samples, how = _given(problem, target, run) if run.sampler or run.batch_size else _default(problem, target, gamma, run)
    good = [index for index, status in enumerate(samples.status) if status.is_healthy]
    if not good:
        raise needs("llc", "sampler", "a smaller step_size: no chain ran to its end", str(samples.status[0]))
    losses, squared = samples.draws[good].double().unbind(-1)
    rung, covariance = measure(n_beta * (losses - problem.loss_at_start), squared, gamma, problem.space.dim)
    checks = [samples.trust[name] for name in _CHECKS]
    said = [*rung.warnings, *_mixing(losses), *(check.sentence for check in checks if check.is_fine is False)]
    moment = float((n_beta * (losses - problem.loss_at_start)).square().mean())
    return LLC(
        rung.estimate, rung.error, problem.loss_at_start, float(losses.mean()), n_beta, problem.num_data, problem.space.dim, rung,
        (rung,), moment, covariance, samples, tuple(said), {"sampler": how, "num_draws": run.num_draws, "seed": run.seed},
    )  # fmt: skip


def _mixing(losses: Tensor) -> list[str]:
    """Say whether the chains disagree about the loss, (chain, draw); how slowly flat directions mix does not matter."""
    worst = float(mixing(losses[..., None]).rhat)
    if not worst > _RHAT:
        return []
    return [
        f"chains disagree: R-hat of the loss is {worst:.3f} (at most {_RHAT}). Take more draws, or a tighter localisation if they "
        f"sit in different valleys."
    ]


def _given(problem: Problem, target: Localised, run: _Run) -> tuple[Samples, str]:
    """Run the sampler that was given, or the one for minibatches."""
    kernel, thin = run.sampler or sghmc("auto"), run.thin or 1
    samples = _sampled(problem, target, kernel, problem.start.expand(run.chains, -1), thin, run)
    return samples, f"{samples.description.splitlines()[0]}, step_size {float(samples.step_size.flatten()[-1]):.3g}"


def _default(problem: Problem, target: Localised, gamma: float, run: _Run) -> tuple[Samples, str]:
    """Run the invariant MSGLD with the step that pilots find; with smaller ones where a chain is thrown out after all."""
    start = problem.start.expand(run.chains, -1)
    found = find_size(target, start, gamma, data=problem.columns or None, seed=run.seed, first_chain=run.chains)
    for tried in range(_TRIES):
        size = found.size / 4**tried
        thin = run.thin or min(_MOST_THIN, max(1, round(crossing(size, gamma) / _PER_CROSSING)))
        samples = _sampled(problem, target, sampler_at(size, gamma), found.position, thin, run)
        if not threw_out(samples):
            break
    how = (
        f"msgld, invariant, step_size {float(samples.step_size.flatten()[-1]):.3g}: {found.steps} steps of pilots; a flat "
        f"direction is crossed in {crossing(size, gamma):.0f} steps, one in {thin} is kept"
    )
    return samples, how


def _sampled(problem: Problem, target: Localised, kernel: Kernel, init: Tensor, thin: int, run: _Run) -> Samples:
    steps = run.num_draws * thin
    at_once = run.chains * -(-min(_BLOCK, steps) // thin)
    return quietly(
        kernel, target, init, num_steps=steps + -(-steps // 2), warmup=-(-steps // 2), thin=thin, data=problem.columns or None,
        batch_size=run.batch_size, seed=run.seed, keep=problem.watch(at_once), compile=run.compile, progress=run.progress,
    )  # fmt: skip


def _check(sampler: Kernel | None, chains: int, num_draws: int, thin: int | None, batch_size: int | None, problem: Problem) -> None:
    if sampler is not None and not isinstance(sampler, Kernel):
        raise needs("llc", "sampler", 'a sampler such as sgld("auto"), or None', sampler, TypeError)
    if sampler is not None and sampler.temperature != 1:
        raise needs("llc", "sampler", "temperature 1: beta is the inverse temperature here", sampler.temperature)
    check_integer("llc", "chains", chains, _FEWEST)
    check_integer("llc", "num_draws", num_draws, 16)
    if thin is not None:
        check_integer("llc", "thin", thin, 1)
    if batch_size is not None and not problem.columns:
        raise needs("llc", "batch_size", "None without data", batch_size)


def _ladder(localisation: Any) -> list[float]:
    """Return the localisations from tight to loose."""
    given = list(localisation) if isinstance(localisation, Sequence) and not isinstance(localisation, str) else [localisation]
    if not given:
        raise needs("llc", "localisation", "at least one number", localisation)
    return sorted((check_number("llc", "localisation", value, "> 0", lambda v: v > 0) for value in given), reverse=True)
